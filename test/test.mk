# Tests and benchmarks.

CRITERION ?= $(call has_header,criterion/criterion.h)
ifeq ($(BUILD),emulated-thread)
# Criterion's runner cannot start with the memory layout of ThreadSanitizer.
override CRITERION := 0
endif
TEST_LIBRARIES  := $(if $(filter 1,$(CRITERION)),-lcriterion)
ifneq ($(filter %test %tests test-%,$(MAKECMDGOALS)),)
ifneq ($(CRITERION),1)
$(info make: without Criterion: the tests run on test/plain_criterion)
endif
endif

TEST_RUNNER     := $(if $(filter 1,$(CRITERION)),,test/plain_criterion/runner.c)
TEST_SOURCES    := $(wildcard test/kernels/*.c) \
                   $(call sources_in,$(addprefix test/,$(DATA_MODULES) $(MODEL_MODULES))) \
                   $(TEST_RUNNER)
# Tests of every operation and of whole trainings, which also run on the GPU. Sanitizers are too
# slow for many steps of training.
DEVICE_TESTS    := $(wildcard test/kernels/*.c) test/model/core/test_gpt_golden.c $(TEST_RUNNER) \
  test/model/pass/test_adapter.c test/model/pass/test_counted.c test/model/core/test_dropout.c \
  test/model/core/test_frozen.c test/model/core/test_layer_stream.c \
  test/model/core/test_keep_quantized.c test/model/core/test_recipe.c \
  test/model/task/test_sample_cache.c test/model/optimize/test_snapshot.c \
  $(if $(filter emulated-thread,$(BUILD)),, \
       test/model/core/test_device_training.c test/model/pass/test_launches.c) \
  $(if $(filter emulated-address emulated-thread,$(BUILD)),,\
    test/model/optimize/test_trainer.c test/model/optimize/test_trainer_overflow.c \
    test/model/pass/test_recompute.c test/model/core/test_masters.c \
    test/model/task/test_preference_golden.c test/model/task/test_policy_golden.c \
    test/model/task/test_distillation.c \
    test/model/task/test_sampler.c test/model/task/test_loglikelihood.c) \
  $(if $(filter emulated,$(BUILD)),test/model/cli/test_autotune_program.c)

# Tables of cases leave out what is 0.
$(OUT)/test/%.o: OPTIONS += -Wno-missing-field-initializers
ifneq ($(CRITERION),1)
$(OUT)/test/%.o: OPTIONS += -Itest/plain_criterion
endif
# Tests compiled for the other framework would not link.
$(call object,$(TEST_SOURCES)): $(OUT)/test/framework
$(OUT)/test/framework: force
	@mkdir -p $(@D)
	@echo 'CRITERION=$(CRITERION)' | cmp -s - $@ || echo 'CRITERION=$(CRITERION)' >$@

# --bench runs the benchmarks instead of the tests, see test/kernels/bench.h.
WITH_BENCH := -Wl,--wrap=main

$(OUT)/tests: $(call object,$(TEST_SOURCES)) $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(WITH_BENCH) $(LIBRARIES) $(TEST_LIBRARIES)

# Tests that the emulator behaves like a GPU and reports mistakes. They need no test framework.
EMULATOR_TESTS := $(wildcard test/cuda_emulator/*.cu)
$(OUT)/test_emulator: $(EMULATOR_TESTS:%.cu=$(OUT)/%.o) $(EMULATOR_OBJECTS)
	$(call say,LINK)
	$(LINK) -lm

# Compiles these tests for a real GPU too, to compare the emulator with it. Compiled for one kind of GPU,
# or for all that have instructions of their own (make conformance).
EVERY_ARCH := 80 90a 100a 120a
ifeq ($(EMULATED),)
CONFORMANCE_ARCH := $(if $(filter command% environment%,$(origin CUDA_ARCH)),$(CUDA_ARCH:90=90a),$(EVERY_ARCH))
CONFORMANCE := $(patsubst %,$(OUT)/conformance_%.o,$(notdir $(EMULATOR_TESTS)) tensor_core.cpp)
$(OUT)/conformance_%.o: test/cuda_emulator/% Makefile test/test.mk
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(QUIET)$(NVCC) -std=c++17 -O2 -I. -MMD -MP \
	  $(foreach arch,$(CONFORMANCE_ARCH),-gencode=arch=compute_$(arch)$(comma)code=sm_$(arch)) -c -o $@ $<
$(OUT)/conformance: $(CONFORMANCE)
	$(call say,LINK)
	$(QUIET)$(NVCC) $(foreach arch,$(CONFORMANCE_ARCH),-gencode=arch=compute_$(arch)$(comma)code=sm_$(arch)) -o $@ $^
endif

#: make conformance    compiles the comparison of the emulator with a GPU, for all kinds of GPUs
conformance: $(OUT)/conformance
.PHONY: conformance

$(OUT)/device_tests: $(call object,$(DEVICE_TESTS)) $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(WITH_BENCH) $(LIBRARIES) $(TEST_LIBRARIES)

# Programs of one file each. logits prints a model's logits, for test/external/check_huggingface.sh.
$(addprefix $(OUT)/,split_all encode_file logits): $(OUT)/%: $(OUT)/test/%.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

# gpu_bench measures a GPU for scripts/gpu_check.sh; --tiny 1 rehearses it on the emulator.
BENCH := $(call object,test/gpu_bench.c test/gpu_bench_subject.c \
                       test/gpu_bench_kernels.c test/gpu_bench_attention.c \
                       test/gpu_bench_products.c) $(OUT)/test/gpu_clock.o
$(OUT)/gpu_bench: $(BENCH) $(LIBRARY)
$(OUT)/gpu_bench:
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

TESTING := $(USE_PROGRAMS) OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

#: make test           all tests, with the CUDA kernels on the emulated GPU
#: make test FILTER='adamw/*'   the tests that match SUITE/NAME, and nothing else
test: $(OUT)/tests $(PROGRAMS) $(MODULE) $(if $(FILTER)$(filter-out fast,$(BUILD)),,check)
	$(TESTING) $(OUT)/tests --jobs 2 $(if $(FILTER),--filter '$(FILTER)')
ifeq ($(BUILD)$(FILTER),fast)
	$(OUT)/tests --bench '!(@(ranks|step|texts)/*)' --rows 64 --width 64 --count 4096 --rounds 1 >/dev/null
ifeq ($(CUDA_HEADERS),)
	@echo "skipped: the CUDA kernels on the emulator, because there is no cuda_runtime.h here"
else
	$(MAKE) BUILD=emulated test-device
endif
endif

# ---- the tests of scripts/test.sh, in one build

# The emulated GPU runs those of every operation, of golden runs and snapshots, and those that need it.
EMULATED_TESTS = $(shell awk -f test/emulated_tests.awk $(TEST_SOURCES) | paste -sd'|')
SHORT_SUITES = $(shell sed -n 's/^Test.\([a-z0-9_]*\),.*/\1/p' $(wildcard test/kernels/*.c) \
                 test/model/core/test_gpt_golden.c test/model/optimize/test_snapshot.c | sort -u | paste -sd'|')

#: make test-short     what scripts/test.sh runs: all CPU tests, and the kernels' on the emulated GPU
# Without the CUDA headers there is no emulated GPU: the CPU's tests of the usual build.
test-short:
ifeq ($(CUDA_HEADERS),)
	$(MAKE) BUILD=fast CUDA=0 test-once
else
	$(MAKE) BUILD=short test-once
endif

# Without a visible GPU, device auto is the CPU.
test-once: $(OUT)/tests $(PROGRAMS) $(MODULE) $(if $(filter short,$(BUILD)),$(OUT)/test_emulator)
	scripts/check_layers.sh
	scripts/check_style.sh
	test/scripts/test_links.py
	$(USE_PROGRAMS) scripts/generate.sh --check
	$(TEST_PYTHON)
	@echo "the tests, on the CPU"
	@$(TESTING) TEST_DEVICE=cpu CUDA_VISIBLE_DEVICES= $(OUT)/tests --jobs 2 --filter '!($(EMULATED_TESTS))'
ifeq ($(BUILD),short)
	$(OUT)/test_emulator
	@echo "the tests of the kernels, on the emulated GPU"
	@$(TESTING) TEST_DEVICE=cuda TEST_SHORT=1 TEST_ONE_GPU=1 $(OUT)/tests --jobs 2 \
	  --filter '@(@($(SHORT_SUITES))/*|$(EMULATED_TESTS))'
endif
	$(USE_PROGRAMS) CUDA_VISIBLE_DEVICES= test/scripts/test_readme.sh
	$(USE_PROGRAMS) CUDA_VISIBLE_DEVICES= test/scripts/test_ranks.sh --short

# Tests whose numbers depend on how tensor cores add, about a minute.
TRUNCATED_TESTS := @(@(matmul*|gpt_golden|snapshot)/*|attention_mma*/@(causal|short_sequences))

#: make test-device    tests of kernels and training on the GPU that is here
# Emulated builds test on the emulated GPU, others on the real one.
test-device: $(OUT)/device_tests $(if $(EMULATED),$(OUT)/test_emulator) \
             $(if $(filter emulated,$(BUILD)),$(addprefix $(OUT)/,train gpu_bench check_cublaslt) $(MODULE))
	$(if $(EMULATED),$(OUT)/test_emulator)
	$(TESTING) TEST_DEVICE=cuda $(OUT)/device_tests --jobs 2
	$(if $(filter emulated,$(BUILD)),$(TESTING) TEST_SHORT=1 CUDA_EMULATOR_TENSOR_CORES=truncate \
	  $(OUT)/device_tests --jobs 2 --filter '$(TRUNCATED_TESTS)')
	$(if $(filter emulated,$(BUILD)),$(USE_PROGRAMS) test/scripts/test_ranks_gpu.sh)
	$(if $(filter emulated,$(BUILD)),$(MAKE) BUILD=emulated test-gpu-failures test-gpu-check)
	$(if $(filter emulated,$(BUILD)),$(OUT)/check_cublaslt)

# Minutes each, mostly of one core.
test-gpu-failures:
	GPU_BENCH=$(OUT)/gpu_bench test/scripts/test_gpu_failures.sh
test-gpu-check:
	test/scripts/test_gpu_check.sh

#: make test-races     the same on the emulated GPU, under ThreadSanitizer
# ThreadSanitizer reports races between the threads of a block, between blocks, and between streams
# without an order.
test-races:
	$(MAKE) BUILD=emulated-thread test-device build/emulated-thread/train
	TRAIN=build/emulated-thread/train test/scripts/test_races.sh

#: make test-isa       the CPU's tests under each set of instructions that is here
test-isa: $(OUT)/tests $(PROGRAMS)
	$(USE_PROGRAMS) TESTS=$(OUT)/tests test/scripts/test_isa.sh

#: make test-split     every fp32 value as a split master and back
test-split: $(OUT)/split_all
	$(OUT)/split_all

#: make test-sanitize  the tests under AddressSanitizer and UBSan, with short ones of the emulated GPU
# One build for both devices, as compiling takes minutes. One kind of emulated GPU runs the suites of
# test-short; `make BUILD=emulated-address test-device` has those of layers in host memory, too.
test-sanitize:
	$(MAKE) BUILD=$(if $(CUDA_HEADERS),emulated-address,sanitize) test-sanitized
test-sanitized: $(OUT)/tests $(PROGRAMS) $(MODULE) $(if $(EMULATED),$(OUT)/test_emulator)
	@$(TESTING) TEST_DEVICE=cpu CUDA_VISIBLE_DEVICES= $(OUT)/tests --jobs 2 --filter '!($(EMULATED_TESTS))'
ifneq ($(EMULATED),)
	$(OUT)/test_emulator
	@$(TESTING) TEST_DEVICE=cuda TEST_SHORT=1 TEST_ONE_GPU=1 $(OUT)/tests --jobs 2 \
	  --filter '@($(SHORT_SUITES))/*'
endif

#: make bench          GPT-2 124M (FAMILY=llama: SmolLM2 135M): ms by part, ratio to products
#: make bench FILTER='rope/*'   the benchmarks that match SUITE/NAME; '*/*' for all
bench: $(OUT)/tests
	$(OUT)/tests --bench '$(or $(FILTER),step/by_operation)' --preset $(if $(filter llama,$(FAMILY)),smollm2-135m,gpt2)

#: make bench-finetune LoRA, QLoRA and all weights of Qwen3 0.6B in bf16: ms by part, ratio to products
#: make bench-finetune COUNTED=40   the same with 40 percent of the tokens in the loss
#: make bench-finetune TORCH=python3   LoRA in turns with PEFT, compiled and eager
bench-finetune: $(OUT)/tests
	$(if $(TORCH),$(TORCH) test/external/torch_finetune.py --tests $(OUT)/tests,$(OUT)/tests --bench step/finetune) \
	  --counted $(or $(COUNTED),100)

#: make bench-adamw    the update of that step with each form of its arrays
bench-adamw: $(OUT)/tests
	$(OUT)/tests --bench adamw

#: make bench-passes   norms, rope and gated SiLU beside copies of memory
bench-passes: $(OUT)/tests
	$(OUT)/tests --bench '@(rmsnorm|rope|qk_norm|swiglu)/*'

#: make bench-products each product of that step by each implementation of the library
bench-products: $(OUT)/tests
	$(OUT)/tests --bench products

#: make bench-sample   a text and eight of Qwen3 0.6B's shape in bf16; products beside copies
#: make bench-sample LLAMA=PYTHON   the same beside llama.cpp, by the xllamacpp of that Python
bench-sample: $(OUT)/tests $(PROGRAMS)
	$(OUT)/tests --bench few_rows --rows 65536
	$(USE_PROGRAMS) test/external/sample_bench.py $(if $(LLAMA),--llama $(LLAMA))

#: make bench-ranks    two processes beside one; bytes between them beside memcpy
bench-ranks: $(OUT)/tests $(if $(MODULE),$(OUT)/train_mpi.so) $(PROGRAMS) $(MODULE)
	$(OUT)/tests --bench ranks --ranks 2
	$(USE_PROGRAMS) scripts/bench_ranks.sh

#: make bench-start    seconds to the first step, resumed, and to a sample's first token
bench-start: $(PROGRAMS)
	TRAIN=./train scripts/bench_start.sh

#: make bench-checkpoint  how long saving stops training, and MB/s beside those of dd
bench-checkpoint: $(PROGRAMS)
	TRAIN=./train scripts/bench_checkpoint.sh

#: make fuzz           fuzz the readers of files (clang), FUZZ_SECONDS=60 each
FUZZ_SECONDS ?= 60
FUZZERS      := $(patsubst test/fuzz/%.c,build/fuzz/%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SOURCES := $(filter-out data/corpus/block_encoder.c data/corpus/splitter.c,$(DATA_SOURCES)) \
                kernels/dtype.c kernels/quantize_format.c model/core/precision.c \
                $(call sources_in,model/architecture model/config) \
                $(wildcard $(addprefix model/io/,config*.c safetensors*.c huggingface*.c)) \
                $(addprefix model/io/,amax_history.c checkpoint_directory.c checkpoint_manifest.c \
                  tensor_files.c adapter_config.c adapter_targets.c quantized_tensors.c)

FUZZ_FLAGS   := -std=gnu11 -D_GNU_SOURCE -I. -g -O1 $(WARNINGS) \
                -fsanitize=address,undefined -fno-sanitize=shift-base -fno-sanitize-recover=all

.SECONDARY: $(FUZZ_SOURCES:%.c=build/fuzz/objects/%.o)
build/fuzz/objects/%.o: %.c $(wildcard */*/*.h */*/*/*.h)
	@mkdir -p $(@D)
	$(call say,CC)
	$(QUIET)clang $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -c -o $@ $<

build/fuzz/%: test/fuzz/%.c test/fuzz/fuzz.h test/small_bpe.h $(FUZZ_SOURCES:%.c=build/fuzz/objects/%.o)
	@mkdir -p build/fuzz/corpus/$*
	$(call say,FUZZ)
	$(QUIET)clang $(FUZZ_FLAGS) -fsanitize=fuzzer -o $@ $(filter %.c %.o,$^) -lcjson -lm

fuzz: $(FUZZERS)
	@set -e; for fuzzer in $(notdir $(FUZZERS)); do echo "  RUN  $$fuzzer"; \
	  build/fuzz/$$fuzzer -max_total_time=$(FUZZ_SECONDS) -timeout=10 -verbosity=0 \
	    -artifact_prefix=build/fuzz/ build/fuzz/corpus/$$fuzzer test/fuzz/seeds configs; done

#: make test-cublaslt  matmuls of training steps described to the real cuBLASLt, without a GPU
$(OUT)/check_cublaslt: $(OUT)/test/check_cublaslt.o $(LIBRARY)
	$(call say,LINK)
	$(LINK) $(LIBRARIES)

test-cublaslt:
ifeq ($(CUDA_HEADERS),)
	@echo "skipped: matmuls described to cuBLASLt, because there is no cuda_runtime.h here"
else
	$(MAKE) BUILD=emulated build/emulated/check_cublaslt
	build/emulated/check_cublaslt
endif

#: make coverage       lines of each module that the CPU's tests reach
coverage:
	scripts/coverage.sh

.PHONY: test test-short test-once test-split test-isa test-sanitize test-sanitized test-device \
        test-gpu-failures test-gpu-check test-races test-cublaslt \
        fuzz coverage bench bench-finetune bench-adamw bench-passes bench-products bench-ranks \
        bench-sample bench-start bench-checkpoint
