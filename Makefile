# mantissa: make, make test, make bench. `make help` lists all targets.
#
# BUILD names a flavor of the build; each has its own folder under build/.
#   BUILD=fast (default)      optimized
#   BUILD=sanitize            AddressSanitizer and UndefinedBehaviorSanitizer, CPU only
#   BUILD=short               CPU and emulated GPU in one build, for scripts/test.sh
#   BUILD=emulated            the CUDA kernels compiled for the CPU, on test/cuda_emulator
#   BUILD=emulated-address    the same under AddressSanitizer and UndefinedBehaviorSanitizer
#   BUILD=emulated-thread     the same under ThreadSanitizer: races of threads, blocks and streams
#   BUILD=emulated-coverage   the same, counting lines, for make cuda-coverage
#   BUILD=coverage            the same for the CPU, for make coverage
#
# MPI=1 builds the module for several ranks, MPI=0 leaves it out; by default mpicc decides.
# CUDA=1 builds the CUDA backend in, CUDA=0 leaves it out; by default the last choice, or nvcc, decides.
# CUDA_ARCH="80 90" are the GPUs that machine code is made for, and PTX of the last for later GPUs;
# CUDA_ARCH=native are the GPUs of this machine. Default: 80, 90 and, where nvcc has them, 100, 120.
# ONEDNN=0 and CRITERION=0 build with our plain fallbacks; NCCL=0 builds the CUDA backend for one GPU;
# by default the headers decide.
# PACKAGES is a folder with cJSON and stb_ds for a machine that lacks them, see gpu_check.sh.

BUILD ?= fast
CC    ?= cc
OUT   := build/$(BUILD)

CFLAGS ?= -O3
WARNINGS := -Wall -Wextra -Werror=switch -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
OPTIONS  := -std=gnu11 -D_GNU_SOURCE -g -fopenmp -I. $(WARNINGS) -MMD -MP
ifeq ($(BUILD),coverage)
OPTIONS += --coverage
CFLAGS  := -O1
endif
ifneq ($(filter sanitize emulated-address,$(BUILD)),)
OPTIONS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS  := -O1
endif
ifeq ($(BUILD),short) # compiling takes longer than running: the least code, without debug information
OPTIONS := $(filter-out -g,$(OPTIONS))
$(OUT)/cpu_%.o: CFLAGS += -O3 # of the CPU's operations
endif
# Equal bits on processors with FMA; and vectorized sqrt, which must not set errno.
$(OUT)/data/util/random.o: OPTIONS += -ffp-contract=off -fno-math-errno
# Equal values of stored weights at every CPU level, and on GPUs.
$(OUT)/kernels/weight_format.o $(OUT)/level_%/kernels/cpu/dequantize.o: OPTIONS += -ffp-contract=off
# Equal blocks in GGUF files, those of llama.cpp's reference.
$(OUT)/model/io/gguf_types.o: OPTIONS += -ffp-contract=off
# Equal values of quantized models, those of the programs that wrote them.
$(OUT)/model/io/quantized_tensors.o: OPTIONS += -ffp-contract=off
# The hash of stb_ds shifts into the sign bit.
$(OUT)/data/util/stb_ds.o: OPTIONS += -fno-sanitize=shift

# ---- packages, and fallbacks for missing ones

comma    := ,
PACKAGES ?= $(wildcard build/packages)
PACKAGE_OPTIONS := $(addprefix -isystem ,$(PACKAGES:%=%/include))
PACKAGE_FOLDER  := $(abspath $(PACKAGES:%=%/lib))
OPTIONS += $(PACKAGE_OPTIONS)
has_header = $(shell $(CC) $(PACKAGE_OPTIONS) $(2) -E -include $(1) -x c /dev/null >/dev/null 2>&1 && echo 1 || echo 0)
ONEDNN    ?= $(call has_header,dnnl.h)
# Libraries are also looked for in lib/ beside the programs, where make_wheel.sh puts them.
LIBRARIES := $(addprefix -L,$(PACKAGE_FOLDER)) \
             $(addprefix -Wl$(comma)-rpath$(comma),$(PACKAGE_FOLDER)) \
             -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib' -lcjson \
             $(if $(filter 1,$(ONEDNN)),-ldnnl) -lm
ifeq ($(filter clean help,$(MAKECMDGOALS)),)
ifneq ($(ONEDNN),1)
$(info make: without oneDNN: matrix products on the CPU are right, but slow)
endif
endif
LINK = $(QUIET)$(CC) $(OPTIONS) $(CFLAGS) $(LDFLAGS) -o $@ $^

include kernels/cuda/cuda.mk

# make V=1 shows whole commands.
QUIET := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $(1) $@)

# The modules of data/ and model/, in the order of scripts/check_layers.sh.
DATA_MODULES    := data/util data/tokenize data/corpus
MODEL_MODULES   := model/architecture model/config model/core model/pass model/task model/optimize model/io model/choices model/plan \
                   model/session model/cli model/lab/audit model/lab/evaluation \
                   model/lab/compare
sources_in       = $(wildcard $(1:%=%/*.c))
DATA_SOURCES    := $(filter-out data/corpus/prepare.c,$(call sources_in,$(DATA_MODULES)))
LIBRARY_SOURCES := $(DATA_SOURCES) $(wildcard kernels/*.c kernels/open/*.c) \
                   $(filter-out %/mpi_module.c,$(wildcard kernels/comm/*.c)) \
                   $(filter-out model/lab/compare/compare.c,$(call sources_in,$(MODEL_MODULES))) \
                   $(addprefix kernels/cpu/,cpu_backend.c level.c products.c waiting.c \
                     $(if $(filter 1,$(ONEDNN)),onednn.c,plain_library.c))
include kernels/cpu/cpu.mk

object = $(patsubst %.c,$(OUT)/%.o,$(1))
LIBRARY := $(OUT)/libmantissa.a
ifeq ($(BUILD),fast)
PROGRAMS := train prepare compare
else
PROGRAMS := $(OUT)/train $(OUT)/prepare $(OUT)/compare
endif

# Several ranks: the code that needs MPI is a module beside the program, built if mpicc exists.
MPICC ?= $(shell command -v mpicc)
MPI   ?= $(if $(MPICC),1,0)
ifeq ($(MPI),1)
ifeq ($(MPICC),)
$(error MPI=1, but there is no mpicc: install libopenmpi-dev, or set MPICC=PATH)
endif
MODULE := $(dir $(firstword $(PROGRAMS)))train_mpi.so
MODULE := $(MODULE:./%=%)
endif

# Tests and scripts find the programs by these paths.
USE_PROGRAMS := TRAIN=./$(word 1,$(PROGRAMS)) PREPARE=./$(word 2,$(PROGRAMS)) \
                COMPARE=./$(word 3,$(PROGRAMS)) XDG_CACHE_HOME=$(abspath $(OUT))/cache

.PHONY: all help force
.SUFFIXES:
.DEFAULT_GOAL := all

#: make                build ./train, ./prepare and ./compare
all: $(PROGRAMS) $(MODULE)

train prepare compare train_mpi.so: %: $(OUT)/%
	@cp $< $@.new && mv $@.new $@

$(OUT)/train: $(OUT)/train.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)
	$(if $(CUDA_SOURCES),,@echo "  note: without CUDA ($(if $(NVCC),CUDA=0; make CUDA=1 changes that,there is no nvcc here))")
	$(if $(MODULE),,@echo "  note: for one process only ($(if $(MPICC),MPI=0,there is no mpicc here))")

$(OUT)/train_mpi.so: kernels/comm/mpi_module.c kernels/comm/mpi_module.h Makefile
	@mkdir -p $(@D)
	$(call say,MPI)
	$(QUIET)$(MPICC) -std=gnu11 -O2 -g -fPIC -shared -I. $(WARNINGS) -o $@ $<

$(OUT)/prepare: $(OUT)/data/corpus/prepare.o $(call object,$(DATA_SOURCES))
	$(call say,LINK)
	$(LINK) $(filter-out -ldnnl,$(LIBRARIES))

$(OUT)/compare: $(OUT)/model/lab/compare/compare.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

$(LIBRARY): $(call object,$(LIBRARY_SOURCES)) $(LEVELS:%=$(OUT)/cpu_%.o) $(CUDA_OBJECTS)
	$(call say,AR)
	$(QUIET)rm -f $@ && $(AR) rcs $@ $^

include test/test.mk
include scripts/scripts.mk

# Records the compiler flags of objects: if they change (CUDA=0, then CUDA=1), objects are compiled
# again.
COMPILED_WITH := $(CC) $(OPTIONS) $(LEVEL_OPTIONS) $(CFLAGS) $(CPPFLAGS) $(LEVELS) $(CUDA) \
                 $(NVCC_OPTIONS) $(GENCODE)
$(OUT)/options: force
	@mkdir -p $(@D)
	@echo '$(COMPILED_WITH)' | cmp -s - $@ || echo '$(COMPILED_WITH)' >$@
force:

$(OUT)/%.o: %.c Makefile $(OUT)/options
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)$(CC) $(OPTIONS) $(CFLAGS) $(CPPFLAGS) -c -o $@ $<

help:
	@sed -n 's/^#: //p' $(filter Makefile %.mk,$(MAKEFILE_LIST))

-include $(if $(wildcard $(OUT)),$(shell find $(OUT) -name '*.d'))
