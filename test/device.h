/* Device that the tests of kernels and models run on: the emulated GPU in emulated builds, else
 * the CPU, or a real GPU if TEST_DEVICE=cuda is set in the environment. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"

static inline enum device test_device(void) {
#ifdef EMULATED
    return DEVICE_CUDA;
#else
    const char *name = getenv("TEST_DEVICE");
    return name && strcmp(name, "cuda") == 0 ? DEVICE_CUDA : DEVICE_CPU;
#endif
}

/* True on the emulated GPU, which is slow: long tests pair their cases there instead of combining
 * all of them. */
static inline bool test_emulated(void) {
#ifdef EMULATED
    return true;
#else
    return false;
#endif
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
 * all of them on CPUs and GPUs, every second one on the emulated GPU, every fourth with it under
 * AddressSanitizer. */
static inline bool test_leaves_out(size_t sum) {
    return test_emulated() && sum % (test_sanitized() ? 4 : 2) != 0;
}

/* True on real GPUs and where the emulator imitates them: tensor cores truncate sums, and fused
 * GELU uses tanh.approx. */
static inline bool test_tensor_cores(void) {
#ifdef EMULATED
    const char *sums = getenv("CUDA_EMULATOR_TENSOR_CORES");
    return sums && strcmp(sums, "truncate") == 0;
#else
    return test_device() == DEVICE_CUDA;
#endif
}
