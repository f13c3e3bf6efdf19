/* Mistakes that the emulator, or a sanitizer with its help, must report. */
#include "kernels/cuda/ptx_hopper.h"
#include "kernels/cuda/storage.h"
#include "test/cuda_emulator/test_emulator.h"

#ifndef __CUDACC__
#if defined(__SANITIZE_ADDRESS__)
enum { PLAIN, ADDRESS, THREAD, FLAVOR = ADDRESS };
#elif defined(__SANITIZE_THREAD__)
enum { PLAIN, ADDRESS, THREAD, FLAVOR = THREAD };
#else
enum { PLAIN, ADDRESS, THREAD, FLAVOR = PLAIN };
#endif

const char *program;

/* ---- misuse that is reported in every build */

static __global__ void misuse_kernel(int which, float *p) {
    __shared__ float values[64];
    __shared__ __align__(16) uint16_t tile[64 * 8];
    int i = (int)threadIdx.x, lane = i % 32;
    uint32_t r[4];
    switch (which) {
    case 0:
        if (i < 32) __syncthreads();
        break;
    case 1:
        if (i == 5) return;
        __syncthreads();
        break;
    case 2:
        if (i < 32) __syncthreads();
        else __syncthreads();
        break;
    case 3:
        if (i % 2) __shfl_xor_sync(~0u, i, 1);
        break;
    case 4: __shfl_sync(1u << lane, i, 7); break;
    case 5:
        if (lane < 16) __syncwarp(0xffffu);
        else __syncwarp(~0u);
        break;
    case 6: cp_async_16(tile + i * 8, p); break;
    case 7: ldmatrix_x4(r, tile + lane * 8 + 1); break;
    case 8: __syncwarp(0xfu); break;
    case 9: p[i] = values[i]; break;
    case 10: named_barrier(1, 96); break;
    case 11:
        __syncwarp();
        if (lane == 0) return;
        __syncwarp();
        break;
    case 12: named_barrier(1, 40); break;
    case 13: named_barrier(16, 64); break;
    case 14: named_barrier(1, i < 32 ? 32 : 64); break;
    case 15:
        cp_async_16(tile + i * 8 + 1, p);
        cp_async_commit();
        cp_async_wait<0>();
        break;
    case 16: /* the wait leaves one group of copies pending: the first is not waited for */
        cp_async_16(tile + i * 8, p + 64);
        cp_async_commit();
        cp_async_wait<1>();
        p[i] = (float)tile[i * 8];
        cp_async_wait<0>();
        break;
    }
}

void test_mistakes() {
    static const char *const reports[] = {"exit",
                                          "exit",
                                          "other threads of the block are at",
                                          "exit",
                                          "not in mask",
                                          "syncwarp",
                                          "never waited",
                                          "2 bytes beyond a multiple of 16",
                                          "not in mask",
                                          NULL,
                                          "deadlock",
                                          "lane",
                                          "not a multiple",
                                          "no barrier 16",
                                          "named_barrier",
                                          "2 bytes beyond a multiple of 16",
                                          NULL};
    buffer<float> p = make_buffer<float>(128);
    upload(p); /* zeros, so that NaN comes from elsewhere */
    for (int which = 0; which < (int)(sizeof reports / sizeof *reports); which++) {
        LAUNCH(misuse_kernel, 1, 64, 0, 0, which, p.device);
        bool failed = cudaGetLastError() != cudaSuccess;
        const char *text = cuda_emulator_failure();
        CHECK(failed == (reports[which] != NULL));
        bool as_expected = !reports[which] || strstr(text, reports[which]);
        CHECK(as_expected);
        if (!as_expected) printf("misuse %d: %s\n", which, text);
        if (reports[which]) continue;
        download(p);
        if (which == 9) CHECK(isnan(p.host[3])); /* unwritten shared memory */
        else CHECK(p.host[3] == 0xffff);         /* a copy in flight */
    }
    LAUNCH(misuse_kernel, 1, 20, 0, 0, 8, p.device); /* lanes the block does not have */
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    drop(p);
}

/* ---- alignment: of the type that is accessed, and no more than a declaration says */

static __global__ void unaligned_kernel(int which, float *p) {
    __shared__ float plain[64];
    __shared__ __align__(16) float wide[64];
    DYNAMIC_SHARED(float, dynamic);
    float4 four = {1, 2, 3, 4};
    switch (which) {
    case 0: *(float4 *)wide = *(float4 *)dynamic = *(float4 *)p = four; break;
    case 1: store_pack(plain, (const float *)p); break; /* by a function, as in kernels */
    case 2: *(float4 *)(dynamic + 1) = four; break;
    case 3: *(float4 *)(p + 2) = four; break;
    case 4: p[0] = ((const float2 *)(p + 1))->y; break;
    case 5: *(uint4 *)(wide + 1) = make_uint4(1, 2, 3, 4); break;
    case 6: emu::check_aligned("memory", dynamic, 256, {__FILE__, __LINE__}); break;
    case 7:
        DYNAMIC_TILES(tiles);
        tiles[0] = 0;
        break;
    }
    p[8] = plain[0] + wide[0];
}

void test_alignment() {
    static const char *const reports[] = {NULL,
                                          "float4': address",
                                          "float4': address",
                                          "float4': address",
                                          "float2': address",
                                          "uint4': address",
                                          "128 bytes beyond a multiple of 256",
                                          "alignment of 128 and of 1024"};
    buffer<float> p = make_buffer<float>(128);
    for (int which = 0; which < (int)(sizeof reports / sizeof *reports); which++) {
        /* AddressSanitizer's companion ends the program; see "misaligned" below. */
        if (FLAVOR == ADDRESS && which >= 1 && which <= 5) continue;
        LAUNCH(unaligned_kernel, 1, 1, 256, 0, which, p.device);
        bool failed = cudaGetLastError() != cudaSuccess;
        const char *text = cuda_emulator_failure();
        bool as_expected =
            reports[which] ? failed && strstr(text, reports[which]) != NULL : !failed;
        CHECK(as_expected);
        CHECK(!failed || strstr(text, "[kernel unaligned_kernel"));
        if (!as_expected) printf("unaligned %d: %s\n", which, text);
    }
    drop(p);
}

/* ---- memory: limits, and calls with wrong pointers */

void test_memory() {
    size_t free_before, free_now, total;
    CHECK(cudaMemGetInfo(&free_before, &total) == cudaSuccess);
    CHECK(free_before == (size_t)16 << 30 && total == free_before);
    void *p = NULL, *q = NULL;
    CHECK(cudaMalloc(&p, SIZE_MAX / 4) == cudaErrorMemoryAllocation && !p);
    CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&p, SIZE_MAX) == cudaErrorMemoryAllocation);
    cudaGetLastError();
    CHECK(cudaMalloc(&p, 1000) == cudaSuccess);
    cuda_emulator_memory(1 << 20);
    CHECK(cudaMemGetInfo(&free_now, &total) == cudaSuccess && free_now == 1 << 20);
    CHECK(cudaMalloc(&q, (1 << 20) + 1) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&q, 1 << 20) == cudaSuccess);
    CHECK(cudaMemGetInfo(&free_now, &total) == cudaSuccess && free_now == 0);
    char host[1001];
    CHECK(cudaMemcpy(host, p, 1000, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemcpy(p, host, 1001, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(cudaMemset((char *)p + 1, 0, 1000) == cudaErrorInvalidValue);
    CHECK(cudaFree((char *)p + 8) == cudaErrorInvalidValue);
    CHECK(cudaFreeHost(p) == cudaErrorInvalidValue);
    CHECK(cudaFree(p) == cudaSuccess && cudaFree(q) == cudaSuccess);
    CHECK(cudaFree(p) == cudaErrorInvalidValue); /* twice */
    cuda_emulator_memory((size_t)16 << 30);
    cudaGetLastError();

    buffer<float> b = make_buffer<float>(64);
    download(b);
    CHECK(isnan(b.host[0])); /* never written */
    LAUNCH(misuse_kernel, 1, 2000, 0, 0, 9, b.device);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    LAUNCH(misuse_kernel, dim3(1, 65536), 32, 0, 0, 9, b.device);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    LAUNCH(misuse_kernel, 0, 32, 0, 0, 9, b.device);
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(cudaFuncSetAttribute(misuse_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               228 << 10) == cudaErrorInvalidValue);
    cudaGetLastError();
    int blocks = 0;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, misuse_kernel, 256, 40 << 10) ==
          cudaSuccess);
    CHECK(blocks == 5);
    drop(b);
}

/* ---- limits of a kernel */

template <int THREADS> static __global__ void __launch_bounds__(THREADS, 2) bounded_kernel(int *p) {
    p[threadIdx.x] = 1;
}

template <int COUNT> static __global__ void static_kernel(int *p) {
    __shared__ int values[COUNT];
    DYNAMIC_SHARED(int, more);
    values[threadIdx.x] = more[threadIdx.x] = 1;
    __syncthreads();
    p[threadIdx.x] = values[threadIdx.x ^ 1] + more[threadIdx.x];
}

template <int THREADS> static void test_bounds(int *p) {
    LAUNCH(bounded_kernel<THREADS>, 1, THREADS, 0, 0, p);
    CHECK(cudaGetLastError() == cudaSuccess);
    LAUNCH(bounded_kernel<THREADS>, 1, dim3(THREADS / 32 + 1, 32), 0, 0, p);
    CHECK(cudaGetLastError() == cudaErrorInvalidValue);
    CHECK(strstr(cuda_emulator_failure(), "launch bounds"));
    int blocks = -1;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, bounded_kernel<THREADS>,
                                                        THREADS + 32, 0) == cudaSuccess);
    CHECK(blocks == 0);
}

void test_limits_of_kernels() {
    buffer<int> b = make_buffer<int>(1024);
    test_bounds<32>(b.device);
    test_bounds<96>(b.device);
    test_bounds<512>(b.device);
    cudaFuncAttributes attributes;
    CHECK(cudaFuncGetAttributes(&attributes, bounded_kernel<96>) == cudaSuccess);
    CHECK(attributes.maxThreadsPerBlock == 96);
    CHECK(cudaFuncGetAttributes(&attributes, misuse_kernel) == cudaSuccess);
    CHECK(attributes.maxThreadsPerBlock == 1024); /* says nothing */

    LAUNCH(static_kernel<12 * 1024 - 32>, 1, 32, 128, 0, b.device); /* 48 KB in all */
    CHECK(cudaGetLastError() == cudaSuccess);
    LAUNCH(static_kernel<12 * 1024 - 31>, 1, 32, 128, 0, b.device);
    CHECK(cudaGetLastError() != cudaSuccess);
    CHECK(cudaFuncSetAttribute(static_kernel<12 * 1024 - 31>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, 128) == cudaSuccess);
    LAUNCH(static_kernel<12 * 1024 - 31>, 1, 32, 128, 0, b.device);
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaFuncSetAttribute(static_kernel<12 * 1024 - 31>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (227 - 47) << 10) == cudaErrorInvalidValue);
    CHECK(cudaFuncSetAttribute(static_kernel<13 * 1024>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, 128) == cudaSuccess);
    cudaGetLastError();
    LAUNCH(static_kernel<13 * 1024>, 1, 32, 128, 0, b.device); /* nvcc does not compile it */
    CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
    CHECK(strstr(cuda_emulator_failure(), "static shared memory"));
    drop(b);
}

/* ---- bank conflicts of ldmatrix, by the pitch of rows */

template <int PITCH> static __global__ void banks_kernel() {
    __shared__ __align__(128) uint16_t tile[32 * PITCH];
    uint32_t r[4];
    for (int j = 0; j < 8; j++) tile[threadIdx.x * PITCH + j] = 0;
    __syncwarp();
    ldmatrix_x4(r, tile + threadIdx.x * PITCH);
}

template <int PITCH> static uint64_t conflicts() {
    cuda_emulator_stats_reset();
    LAUNCH(banks_kernel<PITCH>, 1, 32, 0, 0);
    finish();
    CHECK(cuda_emulator_stats().ldmatrix == 1 && cuda_emulator_stats().launches == 1);
    return cuda_emulator_stats().ldmatrix_conflicts;
}

void test_bank_conflicts() {
    CHECK(conflicts<8>() == 0);
    CHECK(conflicts<24>() == 0);
    CHECK(conflicts<72>() == 0);
    CHECK(conflicts<16>() == 4 * 1); /* rows 0 and 4 share banks, and so on */
    CHECK(conflicts<32>() == 4 * 3);
    CHECK(conflicts<64>() == 4 * 7);
}

/* ---- mistakes that end the program under a sanitizer */

static __global__ void memory_kernel(float *p, int at, int shared_at) {
    __shared__ float values[32];
    DYNAMIC_SHARED(float, dynamic);
    int i = (int)threadIdx.x;
    float *some = shared_at >= 1000 ? dynamic - 1000 : values;
    values[i] = dynamic[i] = 0;
    __syncthreads();
    if (i == 0) p[at] = some[shared_at] = 1;
}

static __global__ void alignment_kernel(float4 *p) {
    p[0].x = 1;
    *(volatile float4 **)&p = (volatile float4 *)((char *)p + 4);
    p[0].y = 2;
}

/* Each thread passes a value to another one; `kind` names the missing step. */
static __global__ void race_kernel(int *out, const int *in, int kind) {
    __shared__ __align__(16) int values[64 * 4];
    int i = (int)threadIdx.x;
    if (kind == 4) {
        cp_async_16(values + 4 * i, in + 4 * i);
        cp_async_commit();
        cp_async_wait<0>(); /* without a barrier, copies of other threads are not visible */
        out[i] = values[4 * (i ^ 1)];
        return;
    }
    values[i] = i;
    if (kind == 1 || kind == 2 || kind == 0) __syncthreads();
    if (kind == 3) named_barrier(1 + i / 32, 32);
    if (kind == 5) __syncwarp();
    int other = values[kind == 5 ? i ^ 1 : i ^ 32];
    if (kind == 0 || kind == 5) __syncthreads();
    if (kind == 2) __syncwarp(); /* not enough */
    values[i] = other;
    __syncthreads();
    out[i] = values[i];
}

/* ---- unordered work */

static __global__ void blocks_kernel(int *out, bool atomic) {
    if (threadIdx.x != 5 % (blockIdx.x + 1)) return; /* not always the same thread */
    if (atomic) atomicAdd(out, 1);
    else *out += 1;
}

static __global__ void copy_kernel(int *out, const int *in) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    out[i] = in[i];
}

/* A kernel of stream a reads `in`; then work of stream b writes it. */
static void write_behind(const char *how, int *out, int *in) {
    cudaStream_t a, b;
    cudaEvent_t read;
    int *host;
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&read, cudaEventDisableTiming);
    cudaMallocHost((void **)&host, 64 * sizeof *host);
    memset(host, 0, 64 * sizeof *host);
    LAUNCH(copy_kernel, 2, 32, 0, a, out, in);
    if (strstr(how, "event")) {
        cudaEventRecord(read, a);
        cudaStreamWaitEvent(b, read, 0);
    }
    if (strstr(how, "host")) cudaStreamSynchronize(a);
    if (strstr(how, "same")) b = a;
    if (strstr(how, "copy"))
        cudaMemcpyAsync(in, host, 64 * sizeof *host, cudaMemcpyHostToDevice, b);
    if (strstr(how, "fill")) cudaMemsetAsync(in, 0, 64 * sizeof *host, b);
    if (strstr(how, "kernel")) LAUNCH(copy_kernel, 2, 32, 0, b, in, in + 64);
    cudaDeviceSynchronize();
}

static const struct {
    const char *name;
    int flavor;
    const char *report; /* NULL: nothing to report */
} planted[] = {
    {"free", ADDRESS, "heap-use-after-free"},
    {"past_device", ADDRESS, "AddressSanitizer"},
    {"before_device", ADDRESS, "AddressSanitizer"},
    {"past_static_shared", ADDRESS, "global-buffer-overflow"},
    {"past_dynamic_shared", ADDRESS, "use-after-poison"},
    {"host_reads_device", ADDRESS, "AddressSanitizer"},
    {"misaligned", ADDRESS, "misaligned address"},
    {"race_0", THREAD, NULL},
    {"race_5", THREAD, NULL},
    {"race_1", THREAD, "data race"},
    {"race_2", THREAD, "data race"},
    {"race_3", THREAD, "data race"},
    {"race_4", THREAD, "data race"},
    {"race_6", THREAD, "data race"},
    {"blocks_apart", THREAD, "data race"},
    {"blocks_atomic", THREAD, NULL},
    {"behind_copy", THREAD, "data race"},
    {"behind_fill", THREAD, "data race"},
    {"behind_kernel", THREAD, "data race"},
    {"behind_copy_event", THREAD, NULL},
    {"behind_copy_host", THREAD, NULL},
    {"behind_copy_same", THREAD, NULL},
    {"behind_kernel_event", THREAD, NULL},
    {"behind_kernel_host", THREAD, NULL},
    {"behind_kernel_same", THREAD, NULL},
};

int make_mistake(const char *name) {
    buffer<float> p = make_buffer<float>(128);
    buffer<int> in = make_buffer<int>(256), out = make_buffer<int>(64);
    upload(in);
    int at = 0, shared_at = 0, bytes = 32 * sizeof(float);
    if (!strcmp(name, "free")) cudaFree(p.device);
    if (!strcmp(name, "past_device")) at = 128;
    if (!strcmp(name, "before_device")) at = -1;
    if (!strcmp(name, "past_static_shared")) shared_at = 32;
    if (!strcmp(name, "past_dynamic_shared")) shared_at = 1032;
    if (!strncmp(name, "race_", 5)) {
        LAUNCH(race_kernel, 1, 64, 0, 0, out.device, in.device, atoi(name + 5));
    } else if (!strncmp(name, "blocks_", 7)) {
        LAUNCH(blocks_kernel, 4, 32, 0, 0, out.device, !strcmp(name, "blocks_atomic"));
        cudaDeviceSynchronize();
    } else if (!strncmp(name, "behind_", 7)) {
        write_behind(name + 7, out.device, in.device);
    } else if (!strcmp(name, "misaligned")) {
        LAUNCH(alignment_kernel, 1, 1, 0, 0, (float4 *)p.device);
    } else if (!strcmp(name, "host_reads_device")) {
        printf("%f\n", (double)p.device[0]);
    } else {
        LAUNCH(memory_kernel, 1, 32, bytes, 0, p.device, at, shared_at);
    }
    return 0;
}

void test_sanitizers() {
    for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
        if (planted[i].flavor != FLAVOR) continue;
        char command[1024], line[1024];
        snprintf(command, sizeof command, "TSAN_OPTIONS=atexit_sleep_ms=0 '%s' %s 2>&1", program,
                 planted[i].name);
        FILE *output = popen(command, "r");
        bool reported = false, wanted = false;
        while (output && fgets(line, sizeof line, output)) {
            if (strstr(line, "Sanitizer") || strstr(line, "runtime error")) reported = true;
            if (planted[i].report && strstr(line, planted[i].report)) wanted = true;
        }
        bool ended_well = output && pclose(output) == 0;
        bool good = planted[i].report ? wanted && !ended_well : ended_well && !reported;
        CHECK(good);
        if (!good) printf("planted mistake %s: not as expected\n", planted[i].name);
    }
}
#endif
