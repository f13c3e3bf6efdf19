/* Hopper's instructions: matmuls of a warp group whose tiles arrive by tensor copies through a
 * ring of barriers (also on a GPU with sm_90a). On the emulator: missing waits and fences. */
#include "kernels/cuda/ptx_hopper.h"
#include "test/cuda_emulator/test_emulator.h"

enum {
    HOPPER_STAGES = 2,
    HOPPER_TILE = 64 * 128, /* bytes of 64 rows */
    HOPPER_STAGE = 2 * HOPPER_TILE,
    HOPPER_BYTES = HOPPER_STAGES * HOPPER_STAGE + 128,
    HOPPER_THREADS = 160, /* one warp group, and a warp that copies */
    HOPPER_ROWS = 128,
    HOPPER_DEPTH = 192
};

enum hopper_mistake {
    NO_MISTAKE,
    COPIES_NOT_WAITED_FOR,
    STAGE_REUSED_EARLY,
    SUMS_NOT_WAITED_FOR,
    NO_FENCE,
    NO_COMMIT,
    FEW_BYTES,
    MANY_ARRIVALS,
    WRONG_STRIDE,
    NOT_SWIZZLED,
    BETWEEN_TILES,
    UNLIKE_LANES,
    STORES_NOT_FENCED
};

/* Not used on a GPU, so the compiler removes it. */
#ifdef __CUDACC__
#define MAKES(which) false
#else
#define MAKES(which) (w.mistake == (which))
#endif

/* Operand forms of A B: A from tiles or registers, the tile of B by columns or by rows of B; the
 * last one has A by columns, too. */
enum hopper_form { TILES, REGISTERS, ROWS_OF_B, COLUMNS_OF_A };

struct hopper_work {
    float *out;        /* [HOPPER_ROWS, 64] */
    const uint16_t *a; /* [HOPPER_ROWS, HOPPER_DEPTH], for REGISTERS */
    int form, mistake;
    int *has; /* true if the kernel was compiled for sm_90a */
};

static __device__ void fetch_tiles(const hopper_work &w, unsigned char *ring, phase_barrier *full,
                                   phase_barrier *empty, const CUtensorMap *a,
                                   const CUtensorMap *b) {
    for (int i = 0; i < HOPPER_DEPTH / 64; i++) {
        int stage = i % HOPPER_STAGES, turn = i / HOPPER_STAGES % 2;
        unsigned char *to = ring + stage * HOPPER_STAGE;
        if (!MAKES(STAGE_REUSED_EARLY)) phase_wait(empty + stage, turn ^ 1);
        phase_arrive_expecting(full + stage, MAKES(FEW_BYTES) ? 1024 : HOPPER_STAGE);
        if (MAKES(MANY_ARRIVALS)) phase_arrive(full + stage), phase_arrive(full + stage);
        if (w.form == COLUMNS_OF_A)
            tensor_copy(to, a, (int)blockIdx.x * 64, i * 64, 0, 0, full + stage);
        else tensor_copy(to, a, i * 64, (int)blockIdx.x * 64, 0, 0, full + stage);
        if (w.form >= ROWS_OF_B) tensor_copy(to + HOPPER_TILE, b, 0, i * 64, 0, 0, full + stage);
        else tensor_copy(to + HOPPER_TILE, b, i * 64, 0, 0, 0, full + stage);
    }
}

/* 16 columns of A from k on, as the fragments of this thread's warp. */
static __device__ void load_registers(uint32_t r[4], const hopper_work &w, int k) {
    int lane = (int)threadIdx.x % 32;
    int row = (int)blockIdx.x * 64 + (int)threadIdx.x / 32 * 16 + lane / 4;
    for (int i = 0; i < 4; i++) {
        const uint16_t *at = w.a + (row + i % 2 * 8) * HOPPER_DEPTH + k + lane % 4 * 2 + i / 2 * 8;
        r[i] = at[0] | (uint32_t)at[1] << 16;
    }
}

template <int FORM>
static __device__ void multiply_stage(float d[GROUP_SUMS], const hopper_work &w,
                                      const unsigned char *stage, int first) {
    uint64_t a = tile_descriptor(stage), b = tile_descriptor(stage + HOPPER_TILE);
    if (MAKES(WRONG_STRIDE)) b ^= (uint64_t)16 << 32;
    if (MAKES(NOT_SWIZZLED)) b &= ~((uint64_t)3 << 62);
    if (MAKES(BETWEEN_TILES)) b += 8 + 1;
    if (MAKES(UNLIKE_LANES)) b += threadIdx.x == 5 ? 1024 / 16 : 0;
    for (int k = 0; k < 4; k++) { /* 16 columns are 32 bytes, 16 rows 2048 */
        uint64_t b_step = b + (uint64_t)(FORM >= ROWS_OF_B ? k * 2048 / 16 : k * 32 / 16);
        uint32_t r[4];
        if (FORM == REGISTERS) {
            load_registers(r, w, first + k * 16);
            group_fence();
            group_product_bf16<0, 1>(d, r, b_step);
            group_commit();
            group_wait<0>();
        } else if (FORM == COLUMNS_OF_A) {
            group_product_bf16_transposed<1, 1>(d, a + (uint64_t)(k * 2048 / 16), b_step);
        } else {
            group_product_bf16<FORM == ROWS_OF_B, 1>(d, a + (uint64_t)(k * 32 / 16), b_step);
        }
    }
}

template <int FORM>
static __global__ void __launch_bounds__(HOPPER_THREADS)
    hopper_kernel(hopper_work w, const __grid_constant__ CUtensorMap a,
                  const __grid_constant__ CUtensorMap b) {
#if defined __CUDA_ARCH__ && !defined __CUDA_ARCH_FEAT_SM90_ALL
    *w.has = 0;
    return;
#endif
    DYNAMIC_TILES(ring);
    phase_barrier *full = (phase_barrier *)(ring + HOPPER_STAGES * HOPPER_STAGE);
    phase_barrier *empty = full + HOPPER_STAGES;
    int thread = (int)threadIdx.x, lane = thread % 32;
    if (thread == 0) {
        for (int i = 0; i < HOPPER_STAGES; i++) phase_init(full + i, 1), phase_init(empty + i, 128);
        phase_init_done();
        if (blockIdx.x == 0) *w.has = 1;
    }
    __syncthreads();
    if (thread >= GROUP_THREADS) {
        if (lane == 0) fetch_tiles(w, ring, full, empty, &a, &b);
        return;
    }
    float d[GROUP_SUMS] = {};
    for (int i = 0; i < HOPPER_DEPTH / 64; i++) {
        int stage = i % HOPPER_STAGES;
        if (!MAKES(COPIES_NOT_WAITED_FOR)) phase_wait(full + stage, i / HOPPER_STAGES % 2);
        if (!MAKES(NO_FENCE)) group_fence();
        multiply_stage<FORM>(d, w, ring + stage * HOPPER_STAGE, i * 64);
        if (!MAKES(NO_COMMIT)) group_commit();
        if (!MAKES(SUMS_NOT_WAITED_FOR)) group_wait<0>();
        phase_arrive(empty + stage);
    }
    int row = (int)blockIdx.x * 64 + thread / 32 * 16 + lane / 4;
    for (int i = 0; i < GROUP_SUMS; i++)
        w.out[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
    if (MAKES(SUMS_NOT_WAITED_FOR)) group_wait<0>();
}

/* A and B from shared memory that threads have written: ones times ones. */
static __global__ void __launch_bounds__(GROUP_THREADS) stored_kernel(hopper_work w) {
#if defined __CUDA_ARCH__ && !defined __CUDA_ARCH_FEAT_SM90_ALL
    *w.has = 0;
    return;
#endif
    DYNAMIC_TILES(tile);
    float d[GROUP_SUMS] = {};
    for (int i = (int)threadIdx.x; i < HOPPER_TILE / 2; i += GROUP_THREADS)
        ((uint16_t *)tile)[i] = 0x3c00; /* 1 in fp16 */
    if (!MAKES(STORES_NOT_FENCED)) shared_stores_done();
    __syncthreads();
    group_fence();
    group_product_f16<0, 0>(d, tile_descriptor(tile), tile_descriptor(tile));
    group_commit();
    group_wait<0>();
    for (int i = 0; i < GROUP_SUMS; i++) w.out[threadIdx.x * GROUP_SUMS + i] = d[i];
    if (threadIdx.x == 0) *w.has = 1;
}

/* A B' with 128 rows of B: column 0 of A is ones, which stmatrix stores, and of B the row's number;
 * all others are 0. Sum n of a row is n. */
static __global__ void __launch_bounds__(GROUP_THREADS) wide_kernel(hopper_work w) {
#if defined __CUDA_ARCH__ && !defined __CUDA_ARCH_FEAT_SM90_ALL
    *w.has = 0;
    return;
#endif
    DYNAMIC_TILES(tile);
    int thread = (int)threadIdx.x, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    for (int i = thread; i < 3 * HOPPER_TILE / 2; i += GROUP_THREADS) ((uint16_t *)tile)[i] = 0;
    __syncthreads();
    const uint32_t ones[4] = {lane % 4 ? 0u : 0x3f80u, lane % 4 ? 0u : 0x3f80u};
    stmatrix_x4(shared_pointer_to(tile + row * 128 + (lane / 16 ^ row % 8) * 16), ones);
    *(uint16_t *)(tile + HOPPER_TILE + thread * 128 + thread % 8 * 16) =
        __bfloat16_as_ushort(__float2bfloat16((float)thread));
    shared_stores_done();
    __syncthreads();
    float d[2 * GROUP_SUMS];
    group_fence();
    group_product_bf16_wide<0>(d, tile_descriptor(tile), tile_descriptor(tile + HOPPER_TILE));
    group_commit();
    group_wait<0>();
    int wrong = 0;
    for (int i = 0; i < 2 * GROUP_SUMS; i++)
        wrong += d[i] != (float)(i / 4 * 8 + lane % 4 * 2 + i % 2);
    w.out[thread] = (float)wrong;
    if (thread == 0) *w.has = 1;
}

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static CUtensorMap map_of(void *matrix, int rows, int columns) {
    CUtensorMap map;
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result) == cudaSuccess);
    CHECK(result == cudaDriverEntryPointSuccess);
    uint64_t row = (uint64_t)columns * 2, all = row * (uint64_t)rows;
    cuuint64_t sizes[4] = {(cuuint64_t)columns, (cuuint64_t)rows, 1, 1};
    cuuint64_t strides[3] = {row, all, all};
    cuuint32_t box[4] = {64, 64, 1, 1}, steps[4] = {1, 1, 1, 1};
    CHECK(((encode_function)found)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, matrix, sizes,
                                   strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
}

/* Small whole numbers: products and sums are exact in any order. */
static float whole(int i) {
    return (float)((i * 7 + i / 64) % 9 - 4);
}

struct hopper_bench {
    buffer<uint16_t> a, b; /* b: [64, HOPPER_DEPTH], or its transpose from ROWS_OF_B on; a also for
                              COLUMNS_OF_A */
    buffer<float> out;
    buffer<int> has;
};

static hopper_bench open_hopper(int form) {
    hopper_bench x = {make_buffer<uint16_t>(HOPPER_ROWS * HOPPER_DEPTH),
                      make_buffer<uint16_t>(64 * HOPPER_DEPTH),
                      make_buffer<float>(HOPPER_ROWS * 64), make_buffer<int>(1)};
    for (int i = 0; i < HOPPER_ROWS * HOPPER_DEPTH; i++)
        x.a.host[form == COLUMNS_OF_A ? i % HOPPER_DEPTH * HOPPER_ROWS + i / HOPPER_DEPTH : i] =
            __bfloat16_as_ushort(__float2bfloat16(whole(i)));
    for (int n = 0; n < 64; n++)
        for (int k = 0; k < HOPPER_DEPTH; k++)
            x.b.host[form >= ROWS_OF_B ? k * 64 + n : n * HOPPER_DEPTH + k] =
                __bfloat16_as_ushort(__float2bfloat16(whole(n * HOPPER_DEPTH + k + 5)));
    upload(x.a);
    upload(x.b);
    upload(x.out);
    upload(x.has);
    return x;
}

static void close_hopper(const hopper_bench &x) {
    drop(x.a), drop(x.b), drop(x.out), drop(x.has);
}

static void launch_hopper(const hopper_bench &x, int form, int mistake) {
    hopper_work w = {x.out.device, x.a.device, form, mistake, x.has.device};
    CUtensorMap a = form == COLUMNS_OF_A ? map_of(x.a.device, HOPPER_DEPTH, HOPPER_ROWS)
                                         : map_of(x.a.device, HOPPER_ROWS, HOPPER_DEPTH);
    CUtensorMap b = form >= ROWS_OF_B ? map_of(x.b.device, HOPPER_DEPTH, 64)
                                      : map_of(x.b.device, 64, HOPPER_DEPTH);
    auto kernel = form == TILES       ? hopper_kernel<TILES>
                  : form == REGISTERS ? hopper_kernel<REGISTERS>
                  : form == ROWS_OF_B ? hopper_kernel<ROWS_OF_B>
                                      : hopper_kernel<COLUMNS_OF_A>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, HOPPER_BYTES) ==
          cudaSuccess);
    LAUNCH(kernel, HOPPER_ROWS / 64, HOPPER_THREADS, HOPPER_BYTES, 0, w, a, b);
}

static int wrong_products(const hopper_bench &x) {
    int wrong = 0;
    for (int m = 0; m < HOPPER_ROWS; m++)
        for (int n = 0; n < 64; n++) {
            float sum = 0;
            for (int k = 0; k < HOPPER_DEPTH; k++)
                sum += whole(m * HOPPER_DEPTH + k) * whole(n * HOPPER_DEPTH + k + 5);
            wrong += x.out.host[m * 64 + n] != sum;
        }
    return wrong;
}

void test_hopper() {
    for (int form = TILES; form <= COLUMNS_OF_A; form++) {
        hopper_bench x = open_hopper(form);
        launch_hopper(x, form, NO_MISTAKE);
        finish();
        download(x.out);
        download(x.has);
        CHECK(!x.has.host[0] || wrong_products(x) == 0);
        close_hopper(x);
    }
    hopper_bench x = open_hopper(TILES);
    hopper_work w = {x.out.device, x.a.device, TILES, NO_MISTAKE, x.has.device};
    LAUNCH(stored_kernel, 1, GROUP_THREADS, HOPPER_TILE, 0, w);
    finish();
    download(x.out);
    download(x.has);
    for (int i = 0; x.has.host[0] && i < GROUP_THREADS * GROUP_SUMS; i++)
        CHECK(x.out.host[i] == 16);
    LAUNCH(wide_kernel, 1, GROUP_THREADS, 3 * HOPPER_TILE, 0, w);
    finish();
    download(x.out);
    for (int i = 0; x.has.host[0] && i < GROUP_THREADS; i++) CHECK(x.out.host[i] == 0);
    close_hopper(x);
}

#ifndef __CUDACC__
/* The emulator reports each case, or its results are NaN. */
void test_hopper_mistakes() {
    static const struct {
        int mistake;
        const char *report; /* NULL: wrong results */
    } all[] = {
        {COPIES_NOT_WAITED_FOR, NULL},     {STAGE_REUSED_EARLY, NULL},
        {SUMS_NOT_WAITED_FOR, NULL},       {NO_FENCE, "without group_fence"},
        {NO_COMMIT, "never waited for"},   {FEW_BYTES, NULL},
        {MANY_ARRIVALS, "more arrivals"},  {WRONG_STRIDE, "1024 bytes apart"},
        {NOT_SWIZZLED, "not swizzled"},    {BETWEEN_TILES, "neither with a tile"},
        {UNLIKE_LANES, "unlike products"}, {STORES_NOT_FENCED, "without shared_stores_done"}};
#ifdef __SANITIZE_THREAD__
    return; /* the sanitizer reports it itself */
#endif
    cuda_emulator_quiet(1);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        hopper_bench x = open_hopper(ROWS_OF_B);
        hopper_work w = {x.out.device, x.a.device, TILES, all[i].mistake, x.has.device};
        if (all[i].mistake != STORES_NOT_FENCED) launch_hopper(x, ROWS_OF_B, all[i].mistake);
        else LAUNCH(stored_kernel, 1, GROUP_THREADS, HOPPER_TILE, 0, w);
        bool reported = cudaGetLastError() != cudaSuccess;
        download(x.out);
        const char *text = cuda_emulator_failure();
        bool good = all[i].report ? reported && strstr(text, all[i].report)
                                  : reported || wrong_products(x) > 0;
        if (!good) printf("mistake %d: \"%s\"\n", all[i].mistake, text);
        CHECK(good);
        if (all[i].mistake == SUMS_NOT_WAITED_FOR) CHECK(isnan(x.out.host[0]));
        close_hopper(x);
    }
    cuda_emulator_quiet(0);
}
#endif
