# mantissa: make, make test, make bench. `make help` lists all targets.
#
# BUILD names a flavor of the build; each has its own folder under build/.
#   BUILD=fast (default)      optimized
#   BUILD=sanitize            AddressSanitizer and UndefinedBehaviorSanitizer, CPU only
#   BUILD=emulated            the CUDA kernels compiled for the CPU, on test/cuda_emulator
#   BUILD=emulated-address    the same under AddressSanitizer and UndefinedBehaviorSanitizer
#   BUILD=emulated-thread     the same under ThreadSanitizer: races of threads, blocks and streams
#   BUILD=emulated-coverage   the same, counting lines, for make cuda-coverage
#
# MPI=1 builds the module for several ranks, MPI=0 leaves it out; by default mpicc decides.
# CUDA=1 builds the CUDA backend in, CUDA=0 leaves it out; by default nvcc decides.
# CUDA_ARCH="80 90" are the GPUs that machine code is made for; later ones translate the last.
# ONEDNN=0 and CRITERION=0 build with our plain stand-ins; NCCL=0 builds the CUDA backend for one GPU;
# by default the headers decide.
# PACKAGES is a folder with cJSON and stb_ds for a machine that lacks them, see gpu_check.sh.

BUILD ?= fast
CC    ?= cc
OUT   := build/$(BUILD)

CFLAGS ?= -O3
WARNINGS := -Wall -Wextra -Werror=switch -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith
OPTIONS  := -std=gnu11 -D_GNU_SOURCE -g -fopenmp -I. $(WARNINGS) -MMD -MP
ifneq ($(filter sanitize emulated-address,$(BUILD)),)
OPTIONS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
CFLAGS  := -O1
endif
# The same bits on processors that could fuse; and a root that sets no errno can be of vectors.
$(OUT)/data/base/random.o: OPTIONS += -ffp-contract=off -fno-math-errno
# The hash of stb_ds shifts into the sign bit.
$(OUT)/data/base/stb_ds.o: OPTIONS += -fno-sanitize=shift

# ---- levels of instructions: the CPU's operations are compiled once for each (kernels/cpu/level.h);
# all else is for any processor of the architecture.

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
# Nobody asks errno about a root, and with it loops of roots are not vectorized.
LEVEL_OPTIONS := -fno-math-errno
OBJCOPY ?= $(shell $(CC) -print-prog-name=objcopy)

# ---- packages, and what stands in where they are missing

comma    := ,
PACKAGES ?= $(wildcard build/packages)
PACKAGE_OPTIONS := $(addprefix -isystem ,$(PACKAGES:%=%/include))
PACKAGE_FOLDER  := $(abspath $(PACKAGES:%=%/lib))
OPTIONS += $(PACKAGE_OPTIONS)
has_header = $(shell $(CC) $(PACKAGE_OPTIONS) $(2) -E -include $(1) -x c /dev/null >/dev/null 2>&1 && echo 1 || echo 0)
ONEDNN    ?= $(call has_header,dnnl.h)
CRITERION ?= $(call has_header,criterion/criterion.h)
ifeq ($(BUILD),emulated-thread)
# ThreadSanitizer lays memory out so that Criterion's runner cannot start.
override CRITERION := 0
endif
LIBRARIES := $(addprefix -L,$(PACKAGE_FOLDER)) \
             $(addprefix -Wl$(comma)-rpath$(comma),$(PACKAGE_FOLDER)) -lcjson \
             $(if $(filter 1,$(ONEDNN)),-ldnnl) -lm
TEST_LIBRARIES := $(if $(filter 1,$(CRITERION)),-lcriterion)
ifeq ($(filter clean help,$(MAKECMDGOALS)),)
ifneq ($(ONEDNN),1)
$(info make: without oneDNN: matrix products on the CPU are right, but slow)
endif
endif
ifneq ($(filter %test %tests test-%,$(MAKECMDGOALS)),)
ifneq ($(CRITERION),1)
$(info make: without Criterion: the tests run on test/plain_criterion)
endif
endif
LINK = $(QUIET)$(CC) $(OPTIONS) $(CFLAGS) $(LDFLAGS) -o $@ $^

# ---- CUDA: real (nvcc), emulated (the C++ compiler and test/cuda_emulator), or none

# CUDA_HEADERS: where cuda_runtime.h is, without which there is nothing to emulate.
NVCC      ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_ARCH ?= 80 90
EMULATED  := $(filter emulated%,$(BUILD))
CUDA_HEADERS := $(firstword $(patsubst %/cuda_runtime.h,%,$(wildcard \
                  $(CUDA_HOME)/include/cuda_runtime.h /usr/local/cuda/include/cuda_runtime.h \
                  /usr/include/cuda_runtime.h)))
CUDA_INCLUDES := $(addprefix -isystem ,$(filter-out /usr/include,$(CUDA_HEADERS)))
ifeq ($(BUILD),sanitize)
CUDA := 0
endif
CUDA ?= $(if $(NVCC),1,0)
ifneq ($(filter 1,$(CUDA) $(EMULATED:%=1)),)
NCCL ?= $(call has_header,nccl.h,$(CUDA_INCLUDES))
endif
WITH_NCCL := $(if $(filter 1,$(NCCL)),-DWITH_NCCL)
CUDA_SOURCES :=
ifneq ($(EMULATED),)
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu kernels/ranks/*.cu)
EMULATOR     := test/cuda_emulator/cuda_emulator
EMULATE      := -std=c++17 -g -iquote . -include $(EMULATOR).h $(PACKAGE_OPTIONS) \
                $(CUDA_INCLUDES) $(WITH_NCCL) -fopenmp -Wall -Wextra -Werror=switch -Wno-unknown-pragmas -Wno-psabi -MMD -MP
EMULATE_emulated         := -O2
EMULATE_emulated-address := -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
                            -fsanitize-sections=emu_shared
EMULATE_emulated-thread  := -O1 -fsanitize=thread
EMULATE_emulated-coverage := -O1 --coverage
CFLAGS  := $(if $(filter %-address,$(BUILD)),-O1,-O2)
OPTIONS += -DWITH_CUDA -DEMULATED $(WITH_NCCL)
LINK    += $(filter -fsanitize=% --coverage,$(EMULATE_$(BUILD))) -rdynamic -lstdc++ -ldl
else ifeq ($(CUDA),1)
ifeq ($(NVCC),)
$(error CUDA=1, but there is no nvcc: install the CUDA toolkit, or set NVCC=PATH)
endif
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu kernels/ranks/*.cu)
NVCC_OPTIONS := -std=c++17 -O3 -lineinfo -I. $(PACKAGE_OPTIONS) $(WITH_NCCL) -MMD -MP \
  -Xcompiler -Wall,-Wextra,-Werror=switch,-fno-exceptions,-fno-threadsafe-statics
GENCODE      := $(foreach arch,$(CUDA_ARCH),-gencode=arch=compute_$(arch),code=sm_$(arch)) \
  -gencode=arch=compute_$(lastword $(CUDA_ARCH)),code=compute_$(lastword $(CUDA_ARCH))
# What no later GPU can run: for Hopper alone, whatever the others are compiled for.
$(OUT)/kernels/cuda/attention_wgmma%: GENCODE := -gencode=arch=compute_90a,code=sm_90a
OPTIONS += -DWITH_CUDA
LINK    += $(addprefix -L$(CUDA_HOME)/,lib64 lib targets/x86_64-linux/lib) -lcudart_static \
           -ldl -lrt -lpthread
endif

# make V=1 shows whole commands.
QUIET := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $(1) $@)

# The rooms of data/ and model/, one folder each, in the order of scripts/check_floors.sh.
DATA_ROOMS      := data/base data/text
MODEL_ROOMS     := model/architecture model/config model model/files model/lab/page model/lab/memory model/lab/ranks \
                   model/run model/lab/audit model/lab/compare
sources_in       = $(wildcard $(1:%=%/*.c))
DATA_SOURCES    := $(filter-out data/text/prepare.c,$(call sources_in,$(DATA_ROOMS)))
LIBRARY_SOURCES := $(DATA_SOURCES) $(wildcard kernels/*.c) \
                   $(filter-out %/mpi_module.c,$(wildcard kernels/ranks/*.c)) \
                   $(filter-out model/lab/compare/compare.c,$(call sources_in,$(MODEL_ROOMS))) \
                   $(addprefix kernels/cpu/,autotune.c cpu_backend.c level.c products.c waiting.c \
                     $(if $(filter 1,$(ONEDNN)),onednn.c,plain_library.c))
LEVEL_SOURCES   := kernels/dtype.c kernels/rounding.c $(filter-out $(LIBRARY_SOURCES) %/onednn.c %/plain_library.c,\
                     $(wildcard kernels/cpu/*.c))
TEST_RUNNER     := $(if $(filter 1,$(CRITERION)),,test/plain_criterion/runner.c)
TEST_SOURCES    := $(wildcard test/kernels/*.c) \
                   $(call sources_in,$(addprefix test/,$(DATA_ROOMS) $(MODEL_ROOMS))) \
                   $(TEST_RUNNER)
# Those that run on whatever device there is: every operation, and whole trainings.
# Sanitizers are too slow for many steps of training.
DEVICE_TESTS    := $(wildcard test/kernels/*.c) test/model/test_gpt_golden.c $(TEST_RUNNER) \
  test/model/test_sample_cache.c test/model/test_snapshot.c \
  $(if $(filter emulated-thread,$(BUILD)),, \
       test/model/test_device_training.c test/model/test_launches.c) \
  $(if $(filter emulated-address emulated-thread,$(BUILD)),,\
    test/model/test_trainer.c test/model/test_recompute.c test/model/test_masters.c)

ifneq ($(CRITERION),1)
$(OUT)/test/%.o: OPTIONS += -Itest/plain_criterion
endif

object = $(patsubst %.c,$(OUT)/%.o,$(1))
LIBRARY := $(OUT)/libmantissa.a
CUDA_OBJECTS := $(CUDA_SOURCES:%.cu=$(OUT)/%.o)
ifneq ($(EMULATED),)
EMULATOR_OBJECTS := $(patsubst %.cpp,$(OUT)/%.o,$(wildcard test/cuda_emulator/*.cpp))
CUDA_OBJECTS += $(EMULATOR_OBJECTS)
endif

ifeq ($(BUILD),fast)
PROGRAMS := train prepare compare
else
PROGRAMS := $(OUT)/train $(OUT)/prepare $(OUT)/compare
endif

# Several ranks: what needs MPI is a module beside the program, made where mpicc is.
MPICC ?= $(shell command -v mpicc)
MPI   ?= $(if $(MPICC),1,0)
ifeq ($(MPI),1)
ifeq ($(MPICC),)
$(error MPI=1, but there is no mpicc: install libopenmpi-dev, or set MPICC=PATH)
endif
MODULE := $(dir $(firstword $(PROGRAMS)))train_mpi.so
MODULE := $(MODULE:./%=%)
endif

# By these paths the tests and scripts find what was built.
USE_PROGRAMS := TRAIN=./$(word 1,$(PROGRAMS)) PREPARE=./$(word 2,$(PROGRAMS)) \
                COMPARE=./$(word 3,$(PROGRAMS))

.PHONY: all test test-split test-isa test-sanitize test-device test-races bench bench-adamw bench-passes bench-products bench-ranks \
        bench-busy bench-start bench-checkpoint \
        cuda-report cuda-coverage check-mutants check generate fuzz install uninstall dist \
        clean help force
.SUFFIXES:

all: $(PROGRAMS) $(MODULE)

train prepare compare train_mpi.so: %: $(OUT)/%
	@cp $< $@.new && mv $@.new $@

$(OUT)/train: $(OUT)/train.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)
	$(if $(CUDA_SOURCES),,@echo "  note: without CUDA ($(if $(NVCC),CUDA=0,there is no nvcc here))")
	$(if $(MODULE),,@echo "  note: for one process only ($(if $(MPICC),MPI=0,there is no mpicc here))")

$(OUT)/train_mpi.so: kernels/ranks/mpi_module.c kernels/ranks/mpi_module.h Makefile
	@mkdir -p $(@D)
	$(call say,MPI)
	$(QUIET)$(MPICC) -std=gnu11 -O2 -g -fPIC -shared -I. $(WARNINGS) -o $@ $<

$(OUT)/prepare: $(OUT)/data/text/prepare.o $(call object,$(DATA_SOURCES))
	$(call say,LINK)
	$(LINK) $(filter-out -ldnnl,$(LIBRARIES))

$(OUT)/compare: $(OUT)/model/lab/compare/compare.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

$(LIBRARY): $(call object,$(LIBRARY_SOURCES)) $(LEVELS:%=$(OUT)/cpu_%.o) $(CUDA_OBJECTS)
	$(call say,AR)
	$(QUIET)rm -f $@ && $(AR) rcs $@ $^

$(OUT)/tests: $(call object,$(TEST_SOURCES)) $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES) $(TEST_LIBRARIES)

# Does the emulator do what a GPU does, and does it report mistakes? Needs no test framework.
EMULATOR_TESTS := $(wildcard test/cuda_emulator/*.cu)
$(OUT)/test_emulator: $(EMULATOR_TESTS:%.cu=$(OUT)/%.o) $(EMULATOR_OBJECTS)
	$(call say,LINK)
	$(LINK) -lm

$(OUT)/device_tests: $(call object,$(DEVICE_TESTS)) $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES) $(TEST_LIBRARIES)

# Programs of one file each: bench times training, bench_products its matrix products,
# bench_tokenizer the tokenizer, and logits prints what a model predicts, for
# scripts/check_huggingface.sh.
$(addprefix $(OUT)/,split_all bench bench_adamw bench_passes bench_products bench_ranks bench_tokenizer encode_file logits): $(OUT)/%: $(OUT)/test/%.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

# What a GPU achieves, for scripts/gpu_check.sh; --tiny 1 rehearses it on the emulator.
$(OUT)/gpu_bench: $(call object,test/gpu_bench.c test/gpu_bench_subject.c \
                                test/gpu_bench_kernels.c test/gpu_bench_attention.c) \
                  $(OUT)/test/gpu_clock.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

# What objects were compiled with: where that changes (CUDA=0 today, CUDA=1 tomorrow), they are
# compiled anew.
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

# One object a level, in which nothing but its table of operations can be seen from outside.
define level_rules
$(OUT)/level_$(1)/%.o: %.c Makefile $(OUT)/options
	@mkdir -p $$(@D)
	$$(call say,CC)
	$$(QUIET)$$(CC) $$(OPTIONS) $$(LEVEL_OPTIONS) $$(LEVEL_$(1)) $$(CFLAGS) $$(CPPFLAGS) -c -o $$@ $$<

$(OUT)/cpu_$(1).o: $$(LEVEL_SOURCES:%.c=$(OUT)/level_$(1)/%.o)
	$$(QUIET)$$(CC) -nostdlib -r -o $$@ $$^
	$$(QUIET)$$(OBJCOPY) --redefine-sym cpu_operations=cpu_operations_$(1) \
	  --keep-global-symbol=cpu_operations_$(1) $$@
endef
$(foreach level,$(LEVELS),$(eval $(call level_rules,$(level))))

ifneq ($(EMULATED),)
# The compiler ignores the section that the emulator gives to shared variables where they stand in
# templates; by the names of their own sections they can be brought there afterwards.
SHARED_OF_TEMPLATES = objcopy $$(objdump -h $@ | awk '$$2 ~ /^\.bss\._ZZ/ { \
  printf "--rename-section %s=emu_shared,alloc,load,data,contents ", $$2 }') $@
$(OUT)/%.o: %.cu Makefile $(OUT)/options
	@mkdir -p $(@D)
	$(call say,CXX)
	$(QUIET)$(CXX) -x c++ -fdata-sections $(EMULATE) $(EMULATE_$(BUILD)) -c -o $@ $<
	$(QUIET)$(SHARED_OF_TEMPLATES)

# The emulator tells ThreadSanitizer what its fibers do, so it must not be watched itself.
$(OUT)/test/cuda_emulator/%.o: test/cuda_emulator/%.cpp Makefile
	@mkdir -p $(@D)
	$(call say,CXX)
	$(QUIET)$(CXX) $(EMULATE) \
	  $(if $(filter %-thread,$(BUILD)),-O2 -DEMU_TSAN,$(EMULATE_$(BUILD))) -c -o $@ $<
else
$(OUT)/%.o: %.cu Makefile $(OUT)/options
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(QUIET)$(NVCC) $(NVCC_OPTIONS) $(GENCODE) -c -o $@ $<
endif

TESTING := $(USE_PROGRAMS) OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

# FILTER='SUITE/NAME', a pattern, runs the tests that match and nothing else.
test: $(OUT)/tests $(PROGRAMS) $(MODULE) $(if $(FILTER),,check)
	$(TESTING) $(OUT)/tests --jobs 2 $(if $(FILTER),--filter '$(FILTER)')
ifeq ($(BUILD)$(FILTER),fast)
ifeq ($(CUDA_HEADERS),)
	@echo "skipped: the CUDA kernels on the emulator, because there is no cuda_runtime.h here"
else
	$(MAKE) BUILD=emulated test-device
endif
endif

# On the emulated GPU in emulated builds; else on the real one.
test-device: $(OUT)/device_tests $(if $(EMULATED),$(OUT)/test_emulator) \
             $(if $(filter emulated,$(BUILD)),$(OUT)/train $(MODULE) $(OUT)/gpu_bench)
	$(if $(EMULATED),$(OUT)/test_emulator)
	$(TESTING) TEST_DEVICE=cuda $(OUT)/device_tests --jobs 2
	$(if $(filter emulated,$(BUILD)),$(USE_PROGRAMS) test/scripts/test_ranks_gpu.sh)
	$(if $(filter emulated,$(BUILD)),GPU_BENCH=$(OUT)/gpu_bench test/scripts/test_gpu_failures.sh)

# Races between the threads of a block, between blocks, and between streams that nothing orders,
# seen by ThreadSanitizer.
test-races:
	$(MAKE) BUILD=emulated-thread test-device build/emulated-thread/train
	TRAIN=build/emulated-thread/train test/scripts/test_races.sh

# The CPU's tests under each set of instructions that this processor has.
test-isa: $(OUT)/tests $(PROGRAMS)
	$(USE_PROGRAMS) TESTS=$(OUT)/tests scripts/test_isa.sh

# All 2^32 fp32 values as split masters.
test-split: $(OUT)/split_all
	$(OUT)/split_all

test-sanitize:
	$(MAKE) BUILD=sanitize test
ifneq ($(CUDA_HEADERS),)
	$(MAKE) BUILD=emulated-address test-device
endif

bench: $(OUT)/bench
	$(OUT)/bench --preset $(if $(filter llama,$(FAMILY)),smollm2-135m,gpt2)

bench-adamw: $(OUT)/bench_adamw
	$(OUT)/bench_adamw

bench-passes: $(OUT)/bench_passes
	$(OUT)/bench_passes

bench-products: $(OUT)/bench_products
	$(OUT)/bench_products

# What moves between processes; nothing where there is no MPI.
bench-ranks: $(OUT)/bench_ranks $(if $(MODULE),$(OUT)/train_mpi.so) $(PROGRAMS) $(MODULE)
	$(OUT)/bench_ranks --ranks 2
	$(USE_PROGRAMS) scripts/bench_ranks.sh

# What a busy neighbor costs a run.
bench-start: $(PROGRAMS)
	TRAIN=./train scripts/bench_start.sh

bench-checkpoint: $(PROGRAMS)
	TRAIN=./train scripts/bench_checkpoint.sh

bench-busy: $(PROGRAMS)
	$(USE_PROGRAMS) scripts/bench_busy.sh

# Registers, spills, occupancy and instructions of every CUDA kernel against what is expected.
cuda-report:
	NVCC="$(NVCC)" scripts/cuda_report.sh

# Lines of CUDA code that no test on the emulated GPU reaches.
cuda-coverage:
	scripts/cuda_coverage.sh

# Plants faults in the CUDA kernels and shows which tests notice; takes a while.
check-mutants:
	scripts/check_mutants.sh

check: $(PROGRAMS)
	scripts/check_floors.sh
	test/scripts/test_floors.sh
	test/scripts/test_links.sh
	scripts/check_instructions.sh $(OUT)
	$(USE_PROGRAMS) scripts/generate.sh --check
	test/plain_criterion/check.sh
	@if command -v shellcheck >/dev/null; then set -x; \
	  shellcheck -x scripts/*.sh scripts/slurm/*.sbatch test/scripts/*.sh test/plain_criterion/*.sh .ci/run; \
	else echo "skipped: no shellcheck here"; fi
	@if command -v python3 >/dev/null; then set -x; \
	  test/scripts/test_estimates.py && test/scripts/test_to_wandb.py; \
	else echo "skipped: the tests of estimates and to_wandb.py, because there is no python3 here"; fi
	test/scripts/test_fetch.sh
	test/scripts/test_plot.sh
ifeq ($(BUILD),fast)
	$(USE_PROGRAMS) test/scripts/test_compare_precisions.sh
	$(USE_PROGRAMS) test/scripts/test_regress.sh
	$(USE_PROGRAMS) test/scripts/test_pages.sh
	MAKE="$(MAKE)" test/scripts/test_install.sh
	$(USE_PROGRAMS) test/scripts/test_ranks.sh
endif

# Refreshes what comes from the option table: configs/schema.json, the keys in configs/README.md.
generate: $(PROGRAMS)
	$(USE_PROGRAMS) scripts/generate.sh

# Any bytes into what reads files: each fuzzer for FUZZ_SECONDS, from the seeds that there are.
FUZZ_SECONDS ?= 60
FUZZERS      := $(patsubst test/fuzz/%.c,build/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SOURCES := $(filter-out data/text/block_encoder.c data/text/splitter.c,$(DATA_SOURCES)) \
                kernels/dtype.c model/precision.c \
                $(call sources_in,model/architecture model/config) \
                $(wildcard $(addprefix model/files/,config*.c safetensors*.c huggingface*.c)) \
                $(addprefix model/files/,amax_history.c checkpoint_manifest.c tensor_files.c)

build/fuzz/%: test/fuzz/%.c test/fuzz/fuzz.h test/small_bpe.h $(FUZZ_SOURCES)
	@mkdir -p build/fuzz/corpus/$*
	$(call say,FUZZ)
	$(QUIET)clang -std=gnu11 -D_GNU_SOURCE -I. -g -O1 $(WARNINGS) \
	  -fsanitize=fuzzer,address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all \
	  -o $@ $(filter %.c,$^) -lcjson -lm

fuzz: $(FUZZERS)
	@set -e; for fuzzer in $(notdir $(FUZZERS)); do echo "  RUN  $$fuzzer"; \
	  build/fuzz/$$fuzzer -max_total_time=$(FUZZ_SECONDS) -timeout=10 -verbosity=0 \
	    -artifact_prefix=build/fuzz/ build/fuzz/corpus/$$fuzzer test/fuzz/seeds configs; done

# ---- installing

# The programs go with their configs/, which they look for beside themselves; on the path are links
# with names of our own, since others have a train and a compare too.
PREFIX  ?= /usr/local
DESTDIR ?=
HOME_OF_PROGRAMS = $(DESTDIR)$(PREFIX)/lib/mantissa
MAN     = $(DESTDIR)$(PREFIX)/share/man/man1
VERSION = $(shell sed -n 's/.*MANTISSA_VERSION "\(.*\)"/\1/p' data/base/program.h)

# Installs what was built, with whatever options: as root, another compiler may be on the path.
install:
	@test -x $(word 1,$(PROGRAMS)) || { echo "nothing is built yet: run make first" >&2; exit 1; }
	install -d "$(HOME_OF_PROGRAMS)/configs" "$(DESTDIR)$(PREFIX)/bin" "$(MAN)"
	install -m 755 $(PROGRAMS) $(MODULE) "$(HOME_OF_PROGRAMS)"
	install -m 644 configs/*.json "$(HOME_OF_PROGRAMS)/configs"
	for name in $(notdir $(PROGRAMS)); do \
	  ln -sfn ../lib/mantissa/$$name "$(DESTDIR)$(PREFIX)/bin/mantissa-$$name" && \
	  scripts/man_page.sh "$(HOME_OF_PROGRAMS)/$$name" $$name $(VERSION) \
	    >"$(MAN)/mantissa-$$name.1" || exit 1; done

uninstall:
	rm -rf "$(HOME_OF_PROGRAMS)"
	for name in $(notdir $(PROGRAMS)); do \
	  rm -f "$(DESTDIR)$(PREFIX)/bin/mantissa-$$name" "$(MAN)/mantissa-$$name.1"; done

# What is committed, as one file.
dist:
	mkdir -p build
	git archive --prefix=mantissa-$(VERSION)/ -o build/mantissa-$(VERSION).tar.gz HEAD
	@echo "  build/mantissa-$(VERSION).tar.gz"

clean:
	rm -rf build train train_mpi.so prepare compare

help:
	@echo "make                build ./train, ./prepare and ./compare"
	@echo "make test           all tests, with the CUDA kernels on the emulated GPU"
	@echo "make test FILTER='adamw/*'   the tests that match SUITE/NAME, and nothing else"
	@echo "make test-sanitize  the same under AddressSanitizer and UBSan"
	@echo "make test-split     every fp32 value as a split master and back"
	@echo "make test-isa       the CPU's tests under each set of instructions that is here"
	@echo "make test-device    tests of kernels and training on the GPU that is here"
	@echo "make test-races     the same on the emulated GPU, under ThreadSanitizer"
	@echo "make bench          GPT-2 124M (FAMILY=llama: SmolLM2 135M): ms by part, ratio to products"
	@echo "make bench-adamw    the update of that step with each form of its arrays"
	@echo "make bench-passes   norms, rope and gated SiLU beside copies of memory"
	@echo "make bench-products each product of that step by each implementation of the library"
	@echo "make bench-ranks    two processes beside one; bytes between them beside memcpy"
	@echo "make bench-busy     ms per step alone, and beside an endless loop"
	@echo "make bench-start    seconds to the first step, resumed, and to a sample's first token"
	@echo "make bench-checkpoint  how long saving stops training, and MB/s beside those of dd"
	@echo "make build/fast/bench_tokenizer  MB/s of the tokenizer: bench_tokenizer DIR FILE ..."
	@echo "make cuda-report    registers, spills, tensor-core instructions of each CUDA kernel, and"
	@echo "                    estimates of what kernels and steps reach"
	@echo "make cuda-coverage  lines of CUDA code that no test reaches"
	@echo "make check-mutants  plants faults in the CUDA kernels, shows which tests notice"
	@echo "make generate       refresh configs/schema.json and the keys in configs/README.md"
	@echo "make fuzz           fuzz the readers of files (clang), FUZZ_SECONDS=60 each"
	@echo "make install        programs, configs and man pages under PREFIX=/usr/local; uninstall"
	@echo "make dist           the committed sources as build/mantissa-VERSION.tar.gz"
	@echo "make clean          remove everything built"

-include $(if $(wildcard $(OUT)),$(shell find $(OUT) -name '*.d'))
