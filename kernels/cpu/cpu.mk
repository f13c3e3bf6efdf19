# The CPU's operations are compiled once for each level of instructions (kernels/cpu/level.h). All
# other code runs on any processor of the architecture.

ifeq ($(firstword $(subst -, ,$(shell $(CC) -dumpmachine))),x86_64)
LEVELS   := v2 v3 v4
OPTIONS  += -march=x86-64 -mtune=generic
LEVEL_v2 := -march=x86-64-v2
LEVEL_v3 := -march=x86-64-v3
# 512-bit vectors run at full speed since Ice Lake and Zen 4; gcc by default avoids them.
LEVEL_v4 := -march=x86-64-v4 -mprefer-vector-width=512
else
LEVELS   := base
endif
# Lets the compiler vectorize sqrt. Plain loops multiply matrices in builds without oneDNN only.
LEVEL_OPTIONS := -fno-math-errno $(if $(filter 1,$(ONEDNN)),,-DPLAIN_PRODUCTS)
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)

LEVEL_SOURCES   := kernels/dtype.c kernels/rounding.c $(filter-out $(LIBRARY_SOURCES) %/onednn.c %/plain_library.c \
                     $(if $(filter 1,$(ONEDNN)),%/plain_products.c),$(wildcard kernels/cpu/*.c))

# Links one object for each level. Its table of operations is its only global symbol.
define level_rules
$(OUT)/level_$(1)/%.o: %.c Makefile kernels/cpu/cpu.mk $(OUT)/options
	@mkdir -p $$(@D)
	$$(call say,CC)
	$$(QUIET)$$(CC) $$(OPTIONS) $$(LEVEL_OPTIONS) $$(LEVEL_$(1)) $$(CFLAGS) $$(CPPFLAGS) -c -o $$@ $$<

$(OUT)/cpu_$(1).o: $$(LEVEL_SOURCES:%.c=$(OUT)/level_$(1)/%.o)
	$$(QUIET)$$(CC) -nostdlib -r -o $$@ $$^
	$$(QUIET)$$(OBJCOPY) --redefine-sym cpu_operations=cpu_operations_$(1) \
	  --keep-global-symbol=cpu_operations_$(1) $$@
endef
$(foreach level,$(LEVELS),$(eval $(call level_rules,$(level))))
