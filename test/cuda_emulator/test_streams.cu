/* Streams and events: work that waits for its inputs gets them (also on a GPU). On the emulator,
 * work that does not wait reads poison. */
#include "test/cuda_emulator/test_emulator.h"

enum {
    STREAM_COUNT = 1 << 16,
    STREAM_THREADS = 256,
    STREAM_BYTES = STREAM_COUNT * (int)sizeof(int)
};

static __global__ void add_kernel(int *out, const int *in, int what) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    out[i] = in[i] + what;
}

/* Two streams and their memory. */
struct bench {
    cudaStream_t compute, copy;
    cudaEvent_t sent, done;
    int *from, *to; /* pinned */
    int *in, *out;  /* device */
};

static bench open_bench() {
    bench b;
    CHECK(cudaStreamCreateWithFlags(&b.compute, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaStreamCreateWithFlags(&b.copy, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&b.sent, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&b.done, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaMallocHost((void **)&b.from, STREAM_BYTES) == cudaSuccess);
    CHECK(cudaMallocHost((void **)&b.to, STREAM_BYTES) == cudaSuccess);
    CHECK(cudaMalloc((void **)&b.in, STREAM_BYTES) == cudaSuccess);
    CHECK(cudaMalloc((void **)&b.out, STREAM_BYTES) == cudaSuccess);
    for (int i = 0; i < STREAM_COUNT; i++) b.from[i] = i, b.to[i] = -7;
    return b;
}

static void close_bench(const bench *b) {
    CHECK(cudaFree(b->in) == cudaSuccess && cudaFree(b->out) == cudaSuccess);
    CHECK(cudaFreeHost(b->from) == cudaSuccess && cudaFreeHost(b->to) == cudaSuccess);
    CHECK(cudaEventDestroy(b->sent) == cudaSuccess && cudaEventDestroy(b->done) == cudaSuccess);
    CHECK(cudaStreamDestroy(b->compute) == cudaSuccess);
    CHECK(cudaStreamDestroy(b->copy) == cudaSuccess);
}

static void send(const bench *b) {
    CHECK(cudaMemcpyAsync(b->in, b->from, STREAM_BYTES, cudaMemcpyHostToDevice, b->copy) ==
          cudaSuccess);
    CHECK(cudaEventRecord(b->sent, b->copy) == cudaSuccess);
}

static void compute(const bench *b, int what) {
    LAUNCH(add_kernel, STREAM_COUNT / STREAM_THREADS, STREAM_THREADS, 0, b->compute, b->out, b->in,
           what);
    CHECK(cudaGetLastError() == cudaSuccess);
}

static void fetch(const bench *b) {
    CHECK(cudaMemcpyAsync(b->to, b->out, STREAM_BYTES, cudaMemcpyDeviceToHost, b->compute) ==
          cudaSuccess);
    CHECK(cudaEventRecord(b->done, b->compute) == cudaSuccess);
}

static bool holds(const int *values, int first) {
    for (int i = 0; i < STREAM_COUNT; i++)
        if (values[i] != first + i) return false;
    return true;
}

/* ---- behaviour on every device */

static void test_pipeline() {
    bench b = open_bench();
    CHECK(cudaStreamWaitEvent(b.compute, b.sent, 0) == cudaSuccess); /* not recorded: no wait */
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < STREAM_COUNT; i++) b.from[i] = i + step;
        send(&b);
        CHECK(cudaStreamWaitEvent(b.compute, b.sent, 0) == cudaSuccess);
        compute(&b, 10 * step);
        fetch(&b);
        CHECK(cudaStreamWaitEvent(b.copy, b.done, 0) == cudaSuccess); /* b.in may be sent again */
        CHECK(cudaEventSynchronize(b.sent) == cudaSuccess);
        memset(b.from, 0, STREAM_BYTES); /* the host may write here again */
        CHECK(cudaEventSynchronize(b.done) == cudaSuccess);
        CHECK(holds(b.to, 11 * step));
    }
    close_bench(&b);
}

/* Pageable host memory is read before the call returns, and written before it returns. */
static void test_unpinned() {
    bench b = open_bench();
    int *memory = (int *)malloc(STREAM_BYTES);
    for (int i = 0; i < STREAM_COUNT; i++) memory[i] = 5 + i;
    CHECK(cudaMemcpyAsync(b.in, memory, STREAM_BYTES, cudaMemcpyHostToDevice, b.copy) ==
          cudaSuccess);
    memset(memory, 0, STREAM_BYTES);
    CHECK(cudaEventRecord(b.sent, b.copy) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(b.compute, b.sent, 0) == cudaSuccess);
    compute(&b, 1);
    CHECK(cudaMemcpyAsync(memory, b.out, STREAM_BYTES, cudaMemcpyDeviceToHost, b.compute) ==
          cudaSuccess);
    CHECK(holds(memory, 6));
    free(memory);
    close_bench(&b);
}

/* One stream keeps its order without events; a chain of events reaches the host by its last one. */
static void test_order() {
    bench b = open_bench();
    CHECK(cudaMemsetAsync(b.in, 0, STREAM_BYTES, b.compute) == cudaSuccess);
    CHECK(cudaMemcpyAsync(b.in, b.from, STREAM_BYTES, cudaMemcpyHostToDevice, b.compute) ==
          cudaSuccess);
    compute(&b, 3);
    CHECK(cudaMemcpyAsync(b.in, b.out, STREAM_BYTES, cudaMemcpyDeviceToDevice, b.compute) ==
          cudaSuccess);
    compute(&b, 4);
    fetch(&b);
    CHECK(cudaMemsetAsync(b.out, 0, STREAM_BYTES, b.compute) == cudaSuccess); /* not into b.to */
    CHECK(cudaStreamWaitEvent(b.copy, b.done, 0) == cudaSuccess);
    CHECK(cudaMemcpyAsync(b.in, b.to, STREAM_BYTES, cudaMemcpyHostToDevice, b.copy) == cudaSuccess);
    CHECK(cudaStreamSynchronize(b.copy) == cudaSuccess);
    CHECK(holds(b.to, 7));
    int *again = (int *)malloc(STREAM_BYTES);
    CHECK(cudaMemcpy(again, b.in, STREAM_BYTES, cudaMemcpyDeviceToHost) == cudaSuccess);
    CHECK(holds(again, 7));
    free(again);
    close_bench(&b);
}

/* Blocking streams and stream 0 wait for each other. */
static void test_legacy() {
    bench b = open_bench();
    cudaStream_t blocking;
    CHECK(cudaStreamCreate(&blocking) == cudaSuccess);
    CHECK(cudaMemcpyAsync(b.in, b.from, STREAM_BYTES, cudaMemcpyHostToDevice, blocking) ==
          cudaSuccess);
    LAUNCH(add_kernel, STREAM_COUNT / STREAM_THREADS, STREAM_THREADS, 0, 0, b.out, b.in, 2);
    CHECK(cudaMemcpyAsync(b.to, b.out, STREAM_BYTES, cudaMemcpyDeviceToHost, blocking) ==
          cudaSuccess);
    CHECK(cudaStreamSynchronize(blocking) == cudaSuccess);
    CHECK(holds(b.to, 2));
    CHECK(cudaStreamDestroy(blocking) == cudaSuccess);
    close_bench(&b);
}

static void test_timing() {
    cudaEvent_t start, end;
    float milliseconds = -1;
    CHECK(cudaEventCreate(&start) == cudaSuccess && cudaEventCreate(&end) == cudaSuccess);
    CHECK(cudaEventRecord(start, 0) == cudaSuccess && cudaEventRecord(end, 0) == cudaSuccess);
    CHECK(cudaEventSynchronize(end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess && milliseconds >= 0);
    CHECK(cudaEventDestroy(start) == cudaSuccess && cudaEventDestroy(end) == cudaSuccess);
}

void test_streams() {
    test_pipeline();
    test_unpinned();
    test_order();
    test_legacy();
    test_timing();
}

/* ---- missing waits that the emulator must detect */

#ifndef __CUDACC__
static bool holds_nothing(const int *values) {
    for (int i = 0; i < STREAM_COUNT; i++)
        if (values[i] != -1) return false;
    return true;
}

void test_missing_waits() {
    bench b = open_bench();
    send(&b);
    compute(&b, 1); /* does not wait for b.sent, so it reads poison */
    fetch(&b);
    CHECK(cudaEventSynchronize(b.done) == cudaSuccess);
    CHECK(b.to[0] == 0 && b.to[STREAM_COUNT - 1] == 0);       /* -1 + 1 */
    for (int i = 0; i < STREAM_COUNT; i++) b.from[i] = 9 + i; /* the host does not wait either */
    CHECK(cudaStreamWaitEvent(b.compute, b.sent, 0) == cudaSuccess);
    compute(&b, 1);
    fetch(&b);
    CHECK(holds_nothing(b.to)); /* without a wait for the copy to the host */
    CHECK(cudaEventSynchronize(b.sent) == cudaSuccess);
    CHECK(holds_nothing(b.to));
    compute(&b, 2); /* comes after the copy, but the host does not wait for it */
    CHECK(holds_nothing(b.to));
    CHECK(cudaEventSynchronize(b.done) == cudaSuccess);
    CHECK(holds(b.to, 10));
    fetch(&b);
    CHECK(cudaEventRecord(b.sent, b.compute) == cudaSuccess);
    CHECK(cudaMemsetAsync(b.out, 0, STREAM_BYTES, b.copy) == cudaSuccess); /* does not wait */
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(holds_nothing(b.to)); /* b.out was overwritten before it was fetched */
    close_bench(&b);
}
#endif
