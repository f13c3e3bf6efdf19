/* Conformance tests of behaviour that kernels rely on. They run on the emulator and on a GPU,
 * where they check our reading of the manuals:
 *
 *   nvcc -std=c++17 -arch=native -I. -o test_emulator test/cuda_emulator/test_*.cu
 *
 * test_mistakes.cu and the last part of test_streams.cu test the emulator alone. */
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"
#include "test/cuda_emulator/test_emulator.h"

int checks_done, checks_failed;

void check_that(bool good, const char *file, int line, const char *text) {
    checks_done++;
    if (good) return;
    if (checks_failed++ < 20) printf("FAILED %s:%d: %s\n", file, line, text);
}

/* ---- tensor cores: one warp, D = A B + 1 with A 16 x 16 and B 16 x 8 */

enum { PITCH = 24 }; /* row pitch in shared memory, in elements */

/* b is stored as 8 columns of 16, or (trans) as 16 rows of 8. */
template <bool half, bool trans>
static __global__ void mma_kernel(float *out, const uint16_t *a, const uint16_t *b) {
    __shared__ __align__(16) uint16_t shared_a[16 * PITCH], shared_b[16 * PITCH];
    int lane = (int)threadIdx.x, row = lane % 16, column = lane / 16 * 8;
    cp_async_16(shared_a + row * PITCH + column, a + row * 16 + column);
    int b_row = trans ? lane : lane / 2, b_column = trans ? 0 : lane % 2 * 8;
    if (lane < 16) cp_async_16(shared_b + b_row * PITCH + b_column, b + lane * 8);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    uint32_t fragment_a[4], fragment_b[4];
    ldmatrix_x4(fragment_a, shared_pointer_to(shared_a + row * PITCH + column));
    if (trans) ldmatrix_x4_trans(fragment_b, shared_pointer_to(shared_b + row * PITCH));
    else ldmatrix_x4(fragment_b, shared_pointer_to(shared_b + lane % 8 * PITCH + lane / 8 % 2 * 8));
    float d[4] = {1, 1, 1, 1};
    if (half) mma_m16n8k16_f16_f32(d, fragment_a, fragment_b, d);
    else mma_m16n8k16_bf16_f32(d, fragment_a, fragment_b, d);
    for (int i = 0; i < 4; i++) out[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

/* Small multiples of 1/4, so that all sums are exact. */
template <bool half> static void random_matrix(const buffer<uint16_t> &matrix, float *values) {
    for (size_t i = 0; i < matrix.count; i++) {
        values[i] = (float)(rand() % 17 - 8) / 4;
        __half h = __float2half_rn(values[i]);
        __nv_bfloat16 b = __float2bfloat16_rn(values[i]);
        memcpy(&matrix.host[i], half ? (void *)&h : (void *)&b, 2);
    }
    upload(matrix);
}

template <bool half, bool trans> static void test_mma_of() {
    buffer<float> out = make_buffer<float>(16 * 8);
    buffer<uint16_t> a = make_buffer<uint16_t>(16 * 16), b = make_buffer<uint16_t>(16 * 8);
    float a_values[16 * 16], b_values[16 * 8];
    random_matrix<half>(a, a_values);
    random_matrix<half>(b, b_values);
    LAUNCH((mma_kernel<half, trans>), 1, 32, 0, 0, out.device, a.device, b.device);
    finish();
    download(out);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float expected = 1;
            for (int k = 0; k < 16; k++)
                expected += a_values[i * 16 + k] * b_values[trans ? k * 8 + j : j * 16 + k];
            CHECK(out.host[i * 8 + j] == expected);
        }
    drop(out), drop(a), drop(b);
}

/* TF32: A 16 x 8, B 8 x 8. Rows of A pass through shared memory: a word that ldmatrix moves can be
 * a value. */
static __global__ void mma_tf32_kernel(float *out, const float *a, const float *b) {
    __shared__ __align__(16) float shared_a[16 * PITCH];
    int lane = (int)threadIdx.x, group = lane / 4, column = lane % 4;
    cp_async_16(shared_a + lane % 16 * PITCH + lane / 16 * 4, a + lane % 16 * 8 + lane / 16 * 4);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    uint32_t fragment_a[4], fragment_b[2];
    ldmatrix_x4(fragment_a, shared_pointer_to(shared_a + lane % 16 * PITCH + lane / 16 * 4));
    for (int i = 0; i < 4; i++) fragment_a[i] = tf32_bits(__uint_as_float(fragment_a[i]));
    for (int i = 0; i < 2; i++) fragment_b[i] = tf32_bits(b[(column + i * 4) * 8 + group]);
#ifdef __CUDACC__ /* GPUs do not read these bits; the emulator reports them */
    for (int i = 0; i < 4; i++) fragment_a[i] |= (uint32_t)(lane * 211 + i * 1777) & 0x1fff;
#endif
    float d[4] = {1, 1, 1, 1};
    mma_m16n8k8_tf32_f32(d, fragment_a, fragment_b, d);
    for (int i = 0; i < 4; i++) out[(group + i / 2 * 8) * 8 + column * 2 + i % 2] = d[i];
}

static void test_mma_tf32() {
    buffer<float> out = make_buffer<float>(16 * 8);
    buffer<float> a = make_buffer<float>(16 * 8), b = make_buffer<float>(8 * 8);
    for (size_t i = 0; i < a.count; i++) a.host[i] = (float)(rand() % 2049 - 1024) / 1024;
    for (size_t i = 0; i < b.count; i++) b.host[i] = (float)(rand() % 17 - 8) / 4;
    upload(a), upload(b);
    LAUNCH(mma_tf32_kernel, 1, 32, 0, 0, out.device, a.device, b.device);
    finish();
    download(out);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            float expected = 1;
            for (int k = 0; k < 8; k++) expected += a.host[i * 8 + k] * b.host[k * 8 + j];
            CHECK(out.host[i * 8 + j] == expected);
        }
    drop(out), drop(a), drop(b);
}

static void test_mma() {
    test_mma_tf32();
    test_mma_of<false, false>();
    test_mma_of<false, true>();
    test_mma_of<true, false>();
    test_mma_of<true, true>();
}

/* Checks every register of every lane. Element (i, j) of matrix m is 64 m + 8 i + j. */
static __global__ void ldmatrix_kernel(uint32_t *out) {
    __shared__ __align__(16) uint16_t tile[32 * 8];
    int lane = (int)threadIdx.x;
    for (int j = 0; j < 8; j++) tile[lane * 8 + j] = (uint16_t)(lane * 8 + j);
    __syncwarp();
    ldmatrix_x4(out + lane * 16, shared_pointer_to(tile + lane * 8));
    ldmatrix_x4_trans(out + lane * 16 + 4, shared_pointer_to(tile + lane * 8));
    shared_pointer pointer = shared_pointer_to(tile); /* counts bytes */
    ldmatrix_x4(out + lane * 16 + 8, pointer + reread_thread_index() * 16);
    ldmatrix_x4_trans(out + lane * 16 + 12, pointer + lane * 16);
}

static void test_ldmatrix() {
    buffer<uint32_t> out = make_buffer<uint32_t>(32 * 16);
    LAUNCH(ldmatrix_kernel, 1, 32, 0, 0, out.device);
    finish();
    download(out);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < 4; m++) {
            const uint32_t *at = &out.host[lane * 16 + m];
            uint32_t i = (uint32_t)lane / 4, j = (uint32_t)lane % 4 * 2, base = 64u * (uint32_t)m;
            uint32_t plain = base + i * 8 + j, across = base + j * 8 + i;
            CHECK(at[0] == (plain | (plain + 1) << 16) && at[8] == at[0]);
            CHECK(at[4] == (across | (across + 8) << 16) && at[12] == at[4]);
        }
    drop(out);
}

/* ---- asynchronous copies: stages in flight, and zeros where nothing is valid */

static __global__ void copy_kernel(int *out, const int *in) {
    __shared__ __align__(16) int stage[3][32 * 4];
    int lane = (int)threadIdx.x;
    for (int s = 0; s < 3; s++) {
        bool valid = lane != 5 + s; /* else the source may be any address */
        const int *from = opaque(valid ? in + (s * 32 + lane) * 4 : in);
        if (s < 2) cp_async_16(&stage[s][lane * 4], from, valid);
        else cp_async_16(shared_pointer_to(stage[s]) + lane * 16, from, valid);
        cp_async_commit();
    }
    cp_async_wait<2>();
    __syncwarp();
    out[lane] = stage[0][lane ^ 4];
    cp_async_wait<1>();
    __syncwarp();
    out[32 + lane] = stage[1][(lane ^ 8) * 4 + 1];
    cp_async_commit(); /* an empty group counts */
    cp_async_wait<1>();
    __syncwarp();
    out[64 + lane] = stage[2][(lane ^ 16) * 4 + 3];
}

static void test_copies() {
    buffer<int> out = make_buffer<int>(3 * 32), in = make_buffer<int>(3 * 32 * 4);
    for (int i = 0; i < 3 * 32 * 4; i++) in.host[i] = 1000 + i;
    upload(in);
    LAUNCH(copy_kernel, 1, 32, 0, 0, out.device, in.device);
    finish();
    download(out);
    for (int lane = 0; lane < 32; lane++) {
        int first = lane ^ 4, second = lane ^ 8, third = lane ^ 16;
        CHECK(out.host[lane] == (first / 4 == 5 ? 0 : 1000 + first));
        CHECK(out.host[32 + lane] == (second == 6 ? 0 : 1000 + (32 + second) * 4 + 1));
        CHECK(out.host[64 + lane] == (third == 7 ? 0 : 1000 + (64 + third) * 4 + 3));
    }
    drop(out), drop(in);
}

/* ---- warps */

enum { WARP_RESULTS = 13 };

static __global__ void warp_kernel(int *out) {
    int lane = (int)threadIdx.x, *o = out + lane * WARP_RESULTS;
    o[0] = __shfl_xor_sync(~0u, lane, 5);
    o[1] = __shfl_down_sync(~0u, lane, 3);
    o[2] = __shfl_up_sync(~0u, lane, 3, 8);
    o[3] = __shfl_sync(~0u, lane, 9, 8);
    o[4] = (int)__ballot_sync(~0u, lane % 3 == 0);
    o[5] = (int)__reduce_add_sync(~0u, (unsigned)lane);
    o[6] = __reduce_max_sync(~0u, lane < 20 ? lane : -lane);
    o[7] = __reduce_min_sync(~0u, lane < 20 ? lane : -lane);
    o[8] = __all_sync(~0u, lane < 32) + 2 * __any_sync(~0u, lane == 40) +
           4 * __any_sync(~0u, lane == 9) + 8 * __all_sync(~0u, lane != 9);
    if (lane < 16) o[9] = __shfl_xor_sync(0x0000ffffu, lane, 1);
    else o[9] = __shfl_xor_sync(0xffff0000u, lane, 2);
    o[10] = (int)__shfl_down_sync(~0u, (double)lane + 0.5, 4, 16);
    o[11] = (int)warp_sum((float)lane);
    o[12] = (int)warp_max((float)(lane == 11 ? 99 : lane));
    /* Each half exchanges values separately, one of them more often. */
    __shared__ int values[32];
    unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    for (int i = 0; i < (lane < 16 ? 5 : 2); i++) {
        values[lane] = lane + i;
        __syncwarp(half);
        if (values[lane ^ 3] != (lane ^ 3) + i) o[0] = -1;
        __syncwarp(half);
    }
}

static void test_warp() {
    buffer<int> out = make_buffer<int>(32 * WARP_RESULTS);
    LAUNCH(warp_kernel, 1, 32, 0, 0, out.device);
    finish();
    download(out);
    for (int lane = 0; lane < 32; lane++) {
        const int *o = &out.host[lane * WARP_RESULTS];
        CHECK(o[0] == (lane ^ 5));
        CHECK(o[1] == (lane + 3 < 32 ? lane + 3 : lane));
        CHECK(o[2] == (lane % 8 >= 3 ? lane - 3 : lane));
        CHECK(o[3] == lane / 8 * 8 + 1);
        CHECK(o[4] == 0x49249249);
        CHECK(o[5] == 496 && o[6] == 19 && o[7] == -31);
        CHECK(o[8] == 1 + 4);
        CHECK(o[9] == (lane < 16 ? lane ^ 1 : lane ^ 2));
        CHECK(o[10] == (lane % 16 + 4 < 16 ? lane + 4 : lane));
        CHECK(o[11] == 496 && o[12] == 99);
    }
    drop(out);
}

/* ---- blocks */

static __global__ void block_kernel(int *sum, int *order) {
    DYNAMIC_SHARED(int, values);
    int i = (int)(threadIdx.x + blockDim.x * threadIdx.y), n = (int)(blockDim.x * blockDim.y);
    values[i] = i;
    int half = i / 64; /* two halves, each with a barrier of its own */
    named_barrier(1 + half, 64);
    int mine = values[half * 64 + 63 - i % 64];
    named_barrier(1 + half, 64);
    values[i] = mine;
    atomicAdd(sum, mine);
    __syncthreads();
    order[(int)blockIdx.x * n + i] = values[(i + 1) % n] + (int)blockIdx.x * 1000;
}

static void test_block() {
    buffer<int> sum = make_buffer<int>(1), order = make_buffer<int>(3 * 128);
    upload(sum);
    LAUNCH(block_kernel, 3, dim3(32, 4), 128 * sizeof(int), 0, sum.device, order.device);
    finish();
    download(sum);
    download(order);
    CHECK(sum.host[0] == 3 * 127 * 64);
    for (int b = 0; b < 3; b++)
        for (int i = 0; i < 128; i++) {
            int next = (i + 1) % 128;
            CHECK(order.host[b * 128 + i] == next / 64 * 64 + 63 - next % 64 + b * 1000);
        }
    drop(sum), drop(order);
}

template <int THREADS> static __global__ void reduce_kernel(float *out) {
    int i = (int)threadIdx.x;
    float sum = block_sum<THREADS>((float)i), again = block_sum<THREADS>(1);
    float max = block_max<THREADS>((float)(i * 7 % THREADS));
    out[4 * i] = sum, out[4 * i + 1] = max, out[4 * i + 2] = again;
    out[4 * i + 3] = block_max<THREADS>((float)-i);
}

template <int THREADS> static void test_reduce_of() {
    buffer<float> out = make_buffer<float>(4 * THREADS);
    LAUNCH(reduce_kernel<THREADS>, 1, THREADS, 0, 0, out.device);
    finish();
    download(out);
    for (int i = 0; i < THREADS; i++) {
        CHECK(out.host[4 * i] == (float)(THREADS * (THREADS - 1) / 2));
        CHECK(out.host[4 * i + 1] == THREADS - 1);
        CHECK(out.host[4 * i + 2] == THREADS);
        CHECK(out.host[4 * i + 3] == 0);
    }
    drop(out);
}

static void test_reduce() {
    test_reduce_of<32>();
    test_reduce_of<96>();
    test_reduce_of<256>();
    test_reduce_of<1024>();
}

static __global__ void votes_kernel(int *out, int chosen) {
    int i = (int)threadIdx.x;
    out[3 * i] = __syncthreads_count(i % 4 == 0);
    out[3 * i + 1] = __syncthreads_or(i == chosen);
    out[3 * i + 2] = __syncthreads_and(i != chosen);
}

static void test_votes() {
    buffer<int> out = make_buffer<int>(3 * 80);
    for (int chosen = 70; chosen < 90; chosen += 10) {
        LAUNCH(votes_kernel, 1, 80, 0, 0, out.device, chosen);
        finish();
        download(out);
        for (int i = 0; i < 80; i++) {
            CHECK(out.host[3 * i] == 20);
            CHECK((out.host[3 * i + 1] != 0) == (chosen < 80));
            CHECK((out.host[3 * i + 2] != 0) == (chosen >= 80));
        }
    }
    drop(out);
}

/* ---- atomics on integers; more than 48 KB of shared memory */

static __global__ void atomics_kernel(unsigned *out, unsigned long long *wide) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(&out[0], i);
    atomicMax(&out[1], i * 37 % 256);
    atomicMin(&out[2], i * 37 % 256 + 5);
    atomicOr(&out[3], 1u << i % 7);
    atomicAnd(&out[4], ~(1u << i % 7));
    atomicCAS(&out[5], i + 1, i + 2);
    atomicExch(&out[6], 1);
    atomicAdd(wide, 1ull << 32);
}

static void test_atomics() {
    buffer<unsigned> out = make_buffer<unsigned>(7);
    buffer<unsigned long long> wide = make_buffer<unsigned long long>(1);
    out.host[2] = out.host[4] = ~0u;
    out.host[5] =
        17; /* one thread finds it and adds one; thread 17 may add another one, and so on */
    upload(out);
    upload(wide);
    LAUNCH(atomics_kernel, 4, 64, 0, 0, out.device, wide.device);
    finish();
    download(out);
    download(wide);
    CHECK(out.host[0] == 255 * 128 && out.host[1] == 255 && out.host[2] == 5);
    CHECK(out.host[3] == 127 && out.host[4] == ~127u);
    CHECK(out.host[5] > 17 && out.host[5] <= 257 && out.host[6] == 1);
    CHECK(wide.host[0] == 256ull << 32);
    drop(out), drop(wide);
}

static __global__ void large_kernel(int *out, int count) {
    DYNAMIC_SHARED(int, values);
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) values[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int i = 0; i < count; i++) sum += values[i] & 1;
        out[0] = sum;
    }
}

static void test_large_shared() {
    buffer<int> out = make_buffer<int>(1);
    int bytes = 96 << 10, count = bytes / 4;
    LAUNCH(large_kernel, 1, 64, bytes, 0, out.device, count);
    CHECK(cudaGetLastError() != cudaSuccess); /* not without opting in */
    CHECK(cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) ==
          cudaSuccess);
    LAUNCH(large_kernel, 1, 64, bytes, 0, out.device, count);
    finish();
    download(out);
    CHECK(out.host[0] == count / 2);
    CHECK(cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               48 << 10) == cudaSuccess);
    drop(out);
}

/* ---- all groups */

static void run_group(const char *name, void (*test)()) {
    int done = checks_done, failed = checks_failed;
    test();
    printf("%-16s %7d checks%s\n", name, checks_done - done,
           checks_failed == failed ? "" : "  FAILED");
    fflush(stdout);
}

/* Runs a group in several orders of threads and blocks, if they can be chosen. */
template <void (*test)()> static void in_all_orders() {
#ifdef __CUDACC__
    test();
#else
    for (unsigned seed = 0; seed < 6; seed++) {
        cuda_emulator_schedule(seed);
        test();
    }
    cuda_emulator_schedule(0);
#endif
}

int main(int count, char **arguments) {
#ifdef __CUDACC__
    (void)count, (void)arguments;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("there is no GPU here\n");
        return 1;
    }
#else
    if (count > 1) return make_mistake(arguments[1]);
    cuda_emulator_quiet(1);
#endif
    run_group("mma", in_all_orders<test_mma>);
    run_group("ldmatrix", in_all_orders<test_ldmatrix>);
    run_group("cp.async", in_all_orders<test_copies>);
    run_group("warps", in_all_orders<test_warp>);
    run_group("blocks", in_all_orders<test_block>);
    run_group("reductions", in_all_orders<test_reduce>);
    run_group("votes", in_all_orders<test_votes>);
    run_group("atomics", in_all_orders<test_atomics>);
    run_group("shared memory", in_all_orders<test_large_shared>);
    run_group("numbers", test_numbers);
    run_group("streams", test_streams);
    run_group("graphs", test_graphs);
    run_group("graphs of two streams", test_graphs_of_two_streams);
    run_group("Hopper", in_all_orders<test_hopper>);
#ifndef __CUDACC__
    if (!SEES_MISSING_WAITS) run_group("missing waits", test_missing_waits);
    run_group("unjoined graphs", test_unjoined_graphs);
    run_group("spoiled graphs", test_spoiled_graphs);
    run_group("stale graphs", test_stale_graphs);
    run_group("Hopper, mistakes", in_all_orders<test_hopper_mistakes>);
    run_group("memory", test_memory);
    run_group("mistakes", in_all_orders<test_mistakes>);
    run_group("alignment", in_all_orders<test_alignment>);
    run_group("limits", test_limits_of_kernels);
    run_group("bank conflicts", test_bank_conflicts);
    run_group("devices", test_devices);
    run_group("NCCL", test_fake_nccl);
    run_group("cuBLASLt", test_fake_cublaslt);
    program = arguments[0];
    run_group("sanitizers", test_sanitizers);
#endif
    printf("%d checks, %d failed\n", checks_done, checks_failed);
    return checks_failed != 0;
}
