/* Helpers shared by the tests of the emulator. They use no test framework, so that they also run
 * on a bare machine with a GPU, and under every sanitizer. */
#ifndef TEST_EMULATOR_H
#define TEST_EMULATOR_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"

extern int checks_done, checks_failed;

/* Counts a check; prints the first few that fail. */
void check_that(bool good, const char *file, int line, const char *text);
#define CHECK(condition) check_that(condition, __FILE__, __LINE__, #condition)

/* Device memory with a copy on the host. */
template <class T> struct buffer {
    T *device, *host;
    size_t count;
};

template <class T> static buffer<T> make_buffer(size_t count) {
    buffer<T> b = {NULL, (T *)calloc(count, sizeof(T)), count};
    CHECK(cudaMalloc((void **)&b.device, count * sizeof(T)) == cudaSuccess);
    return b;
}
template <class T> static void upload(const buffer<T> &b) {
    size_t bytes = b.count * sizeof(T);
    CHECK(cudaMemcpy(b.device, b.host, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
}
template <class T> static void download(const buffer<T> &b) {
    size_t bytes = b.count * sizeof(T);
    CHECK(cudaMemcpy(b.host, b.device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
}
template <class T> static void drop(const buffer<T> &b) {
    CHECK(cudaFree(b.device) == cudaSuccess);
    free(b.host);
}

/* Waits until the kernels launched so far have run. */
static inline void finish() {
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

void test_numbers(); /* test_numbers.cu: rounding, functions, packs */

void test_hopper(); /* test_hopper.cu */
void test_hopper_mistakes();
void test_graphs(); /* test_graphs.cu */
void test_graphs_of_two_streams();
void test_unjoined_graphs();
void test_spoiled_graphs();
void test_stale_graphs();
void test_streams(); /* test_streams.cu */
void test_missing_waits();

void test_devices(); /* test_fake_nccl.cu */
void test_fake_nccl();

void test_fake_cublaslt(); /* test_fake_cublaslt.cu */

/* test_mistakes.cu: mistakes that the emulator must report. Those that sanitizers detect end the
 * program, so it runs itself (`program`) with the name of a mistake as its argument. */
/* ThreadSanitizer reports a missing wait before the test can check its result. */
#ifdef __SANITIZE_THREAD__
enum { SEES_MISSING_WAITS = 1 };
#else
enum { SEES_MISSING_WAITS = 0 };
#endif

extern const char *program;
void test_memory();
void test_mistakes();
void test_alignment();
void test_limits_of_kernels();
void test_bank_conflicts();
void test_sanitizers();
int make_mistake(const char *name);

#endif
