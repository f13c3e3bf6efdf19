# mantissa: make, make test, make bench. `make help` lists all targets.
#
# BUILD names a flavor of the build; each has its own folder under build/.
#   BUILD=fast (default)      optimized for this machine (ARCH=native; set ARCH= for others)
#   BUILD=sanitize            AddressSanitizer and UndefinedBehaviorSanitizer

BUILD ?= fast
ARCH  ?= native
CC    ?= cc
OUT   := build/$(BUILD)

CFLAGS ?= -O3
WARNINGS := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
OPTIONS  := -std=gnu11 -D_GNU_SOURCE -g -fopenmp -I. $(WARNINGS) -MMD -MP
ifneq ($(ARCH),)
OPTIONS += -march=$(ARCH)
# Zen 5 and Sapphire Rapids run 512-bit vectors at full speed; gcc by default avoids them.
OPTIONS += $(shell $(CC) -march=$(ARCH) -mprefer-vector-width=512 -E -x c /dev/null >/dev/null 2>&1 \
             && echo -mprefer-vector-width=512)
endif
ifeq ($(BUILD),sanitize)
OPTIONS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS  := -O1
endif
# The hash of stb_ds shifts into the sign bit.
build/sanitize/data/stb_ds.o: OPTIONS += -fno-sanitize=shift
LIBRARIES := -lcjson -ldnnl -lm
LINK = $(QUIET)$(CC) $(OPTIONS) $(CFLAGS) $(LDFLAGS) -o $@ $^

# make V=1 shows whole commands.
QUIET := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $(1) $@)

DATA_SOURCES    := $(filter-out data/prepare.c,$(wildcard data/*.c))
LIBRARY_SOURCES := $(DATA_SOURCES) $(wildcard kernels/*.c kernels/cpu/*.c model/*.c)
TEST_SOURCES    := $(wildcard test/data/*.c test/kernels/*.c test/model/*.c)
BENCH_SOURCES   := test/bench.c

object = $(patsubst %.c,$(OUT)/%.o,$(1))
LIBRARY := $(OUT)/libmantissa.a

ifeq ($(BUILD),fast)
PROGRAMS := train prepare
else
PROGRAMS := $(OUT)/train $(OUT)/prepare
endif

# By these paths the tests and scripts find what was built.
USE_PROGRAMS := TRAIN=./$(word 1,$(PROGRAMS)) PREPARE=./$(word 2,$(PROGRAMS))

.PHONY: all test test-sanitize bench check generate fuzz clean help
.SUFFIXES:

all: $(PROGRAMS)

train prepare: %: $(OUT)/%
	@cp $< $@.new && mv $@.new $@

$(OUT)/train: $(OUT)/train.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

$(OUT)/prepare: $(OUT)/data/prepare.o $(call object,$(DATA_SOURCES))
	$(call say,LINK)
	$(LINK) -lm

$(LIBRARY): $(call object,$(LIBRARY_SOURCES))
	$(call say,AR)
	$(QUIET)rm -f $@ && $(AR) rcs $@ $^

$(OUT)/tests: $(call object,$(TEST_SOURCES)) $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES) -lcriterion

$(OUT)/bench: $(call object,$(BENCH_SOURCES)) $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

$(OUT)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)$(CC) $(OPTIONS) $(CFLAGS) $(CPPFLAGS) -c -o $@ $<

test: $(OUT)/tests $(PROGRAMS) check
	$(USE_PROGRAMS) OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(OUT)/tests --jobs 2

test-sanitize:
	$(MAKE) BUILD=sanitize test

bench: $(OUT)/bench
	$(OUT)/bench

check: $(PROGRAMS)
	scripts/check_floors.sh
	$(USE_PROGRAMS) scripts/generate.sh --check

# Refreshes what is generated from the option table: configs/schema.json, the README's reference.
generate: $(PROGRAMS)
	$(USE_PROGRAMS) scripts/generate.sh

# Any bytes into what reads files: each fuzzer for FUZZ_SECONDS, from the seeds that there are.
FUZZ_SECONDS ?= 60
FUZZERS      := $(patsubst test/fuzz/%.c,build/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SOURCES := $(DATA_SOURCES) kernels/dtype.c $(wildcard model/config*.c model/safetensors*.c) \
                model/json_file.c model/checkpoint_manifest.c

build/fuzz/%: test/fuzz/%.c test/fuzz/fuzz.h $(FUZZ_SOURCES)
	@mkdir -p build/fuzz/corpus/$*
	$(call say,FUZZ)
	$(QUIET)clang -std=gnu11 -D_GNU_SOURCE -I. -g -O1 $(WARNINGS) \
	  -fsanitize=fuzzer,address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all \
	  -o $@ $(filter %.c,$^) -lcjson -lm

fuzz: $(FUZZERS)
	@set -e; for fuzzer in $(notdir $(FUZZERS)); do echo "  RUN  $$fuzzer"; \
	  build/fuzz/$$fuzzer -max_total_time=$(FUZZ_SECONDS) -timeout=10 -verbosity=0 \
	    -artifact_prefix=build/fuzz/ build/fuzz/corpus/$$fuzzer test/fuzz/seeds configs; done

clean:
	rm -rf build train prepare

help:
	@echo "make                build ./train and ./prepare"
	@echo "make test           all tests"
	@echo "make test-sanitize  all tests under AddressSanitizer and UBSan"
	@echo "make bench          GPT-2 124M: ms per step by part, tokens/s, ratio to bare products"
	@echo "make generate       refresh configs/schema.json and the README's config reference"
	@echo "make fuzz           fuzz the readers of files (clang), FUZZ_SECONDS=60 each"
	@echo "make clean          remove everything built"

-include $(wildcard $(OUT)/*.d $(OUT)/*/*.d $(OUT)/*/*/*.d)
