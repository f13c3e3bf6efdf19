/* Device that the tests of kernels and models run on. TEST_DEVICE in the environment chooses the
 * cpu or cuda: a real GPU, or in emulated builds the emulated one. By default it is the emulated
 * GPU in emulated builds, else the CPU. TEST_SHORT in the environment shortens tests on the
 * emulated GPU: one order of its threads instead of three. With TEST_ONE_GPU, kernels run on one kind
 * of GPU, Hopper, instead of two. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

static inline enum device test_device(void) {
    const char *name = getenv("TEST_DEVICE");
#ifdef EMULATED
    return name && strcmp(name, "cpu") == 0 ? DEVICE_CPU : DEVICE_CUDA;
#else
    return name && strcmp(name, "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU;
#endif
}

/* True on the emulated GPU, which is slow: long tests pair their cases there instead of combining
 * all of them. */
static inline bool test_emulated(void) {
#ifdef EMULATED
    return test_device() == DEVICE_CUDA;
#else
    return false;
#endif
}

/* True if tests on the emulated GPU are to be short. */
static inline bool test_short(void) {
    return test_emulated() && getenv("TEST_SHORT");
}

/* True under AddressSanitizer, where the emulated GPU takes several times as long again. */
static inline bool test_sanitized(void) {
#ifdef __SANITIZE_ADDRESS__
    return true;
#else
    return false;
#endif
}

/* True if a long test leaves out the combination of its cases whose indices have this sum. It keeps
 * all of them on CPUs and GPUs, and every fourth one on the emulated GPU. */
static inline bool test_leaves_out(size_t sum) {
    return test_emulated() && sum % 4 != 0;
}

/* True on real GPUs and where the emulator imitates them: tensor cores truncate sums, and fused
 * GELU uses tanh.approx. */
static inline bool test_tensor_cores(void) {
    const char *sums = getenv("CUDA_EMULATOR_TENSOR_CORES");
    return test_device() == DEVICE_CUDA &&
           (!test_emulated() || (sums && strcmp(sums, "truncate") == 0));
}
