# The CUDA backend: compiled by nvcc, or for the CPU by the C++ compiler and test/cuda_emulator
# (BUILD=emulated*), or left out.

# CUDA_HEADERS is the directory of cuda_runtime.h, which the emulator needs as well.
NVCC      ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
EMULATED  := $(filter short emulated%,$(BUILD))
CUDA_HEADERS := $(firstword $(patsubst %/cuda_runtime.h,%,$(wildcard \
                  $(CUDA_HOME)/include/cuda_runtime.h /usr/local/cuda/include/cuda_runtime.h \
                  /usr/include/cuda_runtime.h)))
CUDA_INCLUDES := $(addprefix -isystem ,$(filter-out /usr/include,$(CUDA_HEADERS)))
ifneq ($(filter sanitize coverage,$(BUILD)),)
CUDA := 0
endif
# `make CUDA=0` is remembered, as the quickstart without a GPU calls it: nvcc takes minutes. CUDA=1
# changes it.
ifeq ($(BUILD)$(origin CUDA),fastcommand line)
$(shell mkdir -p build && echo $(CUDA) >build/cuda)
endif
CUDA ?= $(or $(if $(filter fast,$(BUILD)),$(shell cat build/cuda 2>/dev/null)),$(if $(NVCC),1,0))
ifneq ($(filter 1,$(CUDA) $(EMULATED:%=1)),)
NCCL ?= $(call has_header,nccl.h,$(CUDA_INCLUDES))
endif
WITH_NCCL := $(if $(filter 1,$(NCCL)),-DWITH_NCCL)
CUDA_SOURCES :=
ifneq ($(EMULATED),)
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu kernels/comm/*.cu)
EMULATOR     := test/cuda_emulator/cuda_emulator
EMULATE      := -std=c++17 $(if $(filter short,$(BUILD)),,-g) -iquote . -include $(EMULATOR).h $(PACKAGE_OPTIONS) \
                $(CUDA_INCLUDES) $(WITH_NCCL) -fopenmp -Wall -Wextra -Werror=switch -Wno-unknown-pragmas -Wno-psabi -MMD -MP
EMULATE_emulated         := -O2
KERNELS_emulated         := -fsanitize=alignment
EMULATE_short            := -O1
KERNELS_short            := -fsanitize=alignment
EMULATE_emulated-address := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
                            -fsanitize-sections=emu_shared
EMULATE_emulated-thread  := -O1 -fsanitize=thread
KERNELS_emulated-thread  := -fsanitize=alignment
EMULATE_emulated-coverage := -O1 --coverage
CFLAGS  := $(if $(filter short %-address,$(BUILD)),-O1,-O2)
OPTIONS += -DWITH_CUDA -DEMULATED $(WITH_NCCL)
LINK    += $(filter -fsanitize=% --coverage,$(EMULATE_$(BUILD))) -rdynamic -lstdc++ -ldl
else ifeq ($(CUDA),1)
ifeq ($(NVCC),)
$(error CUDA=1, but there is no nvcc: install the CUDA toolkit, or set NVCC=PATH)
endif
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu kernels/comm/*.cu)
NVCC_OPTIONS := -std=c++17 -O3 -lineinfo -I. $(PACKAGE_OPTIONS) $(WITH_NCCL) -MMD -MP \
  -Xfatbin -compress-all \
  -Xcompiler -Wall,-Wextra,-Werror=switch,-fno-exceptions,-fno-threadsafe-statics
ifeq ($(CUDA_ARCH),native)
override CUDA_ARCH := $(sort $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader | tr -d .))
ifeq ($(CUDA_ARCH),)
$(error CUDA_ARCH=native, but nvidia-smi lists no GPU: set CUDA_ARCH="80 90", for example)
endif
endif
# By default also for Blackwell, where this nvcc knows it, translated from the PTX of sm_90.
ifndef CUDA_ARCH
CUDA_ARCH := 80 90
LATER     := $(filter 100 120,$(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code)))
endif
NO_FMAD      := dropout elementwise update/gradient_norm update/update
PTX          := compute_$(lastword $(CUDA_ARCH))
GENCODE      := $(foreach arch,$(CUDA_ARCH),-gencode=arch=compute_$(arch),code=sm_$(arch)) \
  $(foreach code,$(LATER:%=sm_%) $(PTX),-gencode=arch=$(PTX),code=$(code))
# Whole chunks and the elements at an end run different code, and which runs where depends on the
# borders of shards: without fused multiply-adds, which nvcc would place differently in the two, both
# round alike. Memory bounds these kernels, so they are as fast.
$(addprefix $(OUT)/kernels/cuda/,$(NO_FMAD:=.o)): NVCC_OPTIONS += -fmad=false
# wgmma exists on Hopper only, not on later GPUs.
$(OUT)/kernels/cuda/attention/attention_wgmma% $(OUT)/test/attention_wgmma%: GENCODE := -gencode=arch=compute_90a,code=sm_90a
OPTIONS += -DWITH_CUDA
LINK    += $(addprefix -L$(CUDA_HOME)/,lib64 lib targets/x86_64-linux/lib) -lcudart_static \
           -ldl -lrt -lpthread
endif

CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(OUT)/%.o)
ifneq ($(EMULATED),)
EMULATOR_OBJECTS := $(patsubst %.cpp,$(OUT)/%.o,$(wildcard test/cuda_emulator/*.cpp))
CUDA_OBJECTS += $(EMULATOR_OBJECTS)
endif

ifneq ($(EMULATED),)
# The emulator puts shared variables into a section of their own. The compiler ignores that in
# templates, so the sections of those variables are renamed. Variables move to odd multiples of
# their alignment, so an access that needs a larger one always fails.
PLACE_SHARED = awk '$$1 ~ /^\.(section|text|data|bss)$$/ { \
    shared = sub(/\.bss\._ZZ[^,]*,"aw",@nobits/, "emu_shared,\"aw\"") || /\temu_shared/ } \
  shared && $$1 == ".align" { print "\t.balign " 2 * $$2 "\n\t.skip " $$2; next } \
  { print }'
$(OUT)/%.o: %.cu Makefile kernels/cuda/cuda.mk $(OUT)/options
	@mkdir -p $(@D)
	$(call say,CXX)
	$(QUIET)$(CXX) -x c++ -fdata-sections $(EMULATE) $(EMULATE_$(BUILD)) $(KERNELS_$(BUILD)) \
	  -MT $@ -S -o $(@:.o=.s) $<
	$(QUIET)$(PLACE_SHARED) $(@:.o=.s) >$(@:.o=.placed.s)
	$(QUIET)$(CXX) -c -o $@ $(@:.o=.placed.s)

# The emulator describes its fibers to ThreadSanitizer, so it is not instrumented itself.
$(OUT)/test/cuda_emulator/%.o: test/cuda_emulator/%.cpp Makefile kernels/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,CXX)
	$(QUIET)$(CXX) $(EMULATE) \
	  $(if $(filter %-thread,$(BUILD)),-DEMU_TSAN,$(EMULATE_$(BUILD))) -O2 -c -o $@ $<
else
$(OUT)/%.o: %.cu Makefile kernels/cuda/cuda.mk $(OUT)/options
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(QUIET)$(NVCC) $(NVCC_OPTIONS) $(GENCODE) -c -o $@ $<
endif

#: make cuda-report    registers, spills, tensor-core instructions of each CUDA kernel
cuda-report:
	NVCC="$(NVCC)" scripts/cuda_report.sh

#: make cuda-coverage  lines of CUDA code that no test reaches
cuda-coverage:
	scripts/cuda_coverage.sh

#: make check-mutants  plants faults in the CUDA kernels, shows which tests notice
check-mutants:
	scripts/check_mutants.sh
.PHONY: cuda-report cuda-coverage check-mutants
