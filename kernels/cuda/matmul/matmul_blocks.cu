/* Scales as the library reads them take up to an eighth of the bytes of the codes (one byte for 16
 * codes of 4 bits). */
#include "kernels/cuda/matmul/matmul_blocks.h"

extern "C" {
#include "kernels/block_scale.h"
}

enum { THREADS = 256, TILE_ROWS = 128, TILE_BYTES = 512 };

enum product_scale cuda_blocks_mode(int major, const struct quantize_format *format,
                                    bool transposed) {
    int64_t along = transposed ? format->rows : format->columns;
    int64_t across = transposed ? format->columns : format->rows;
    bool four = format->element == DTYPE_E2M1, e8m0 = format->scale == DTYPE_E8M0;
    if (!PRODUCTS_KNOW_BLOCKS) return PRODUCT_UNSCALED;
    if (major >= 10 && four && format->scale == DTYPE_E4M3 && along == 16) return PRODUCT_VEC16;
    if (major >= 10 && !four && e8m0 && along % 32 == 0) return PRODUCT_VEC32;
    if (major == 9 && !four && e8m0 && along == 128 && across == 1) return PRODUCT_VEC128;
    if (major == 9 && !four && e8m0 && along == 128 && across == 128) return PRODUCT_BLK128;
    return PRODUCT_UNSCALED;
}

size_t product_scale_bytes(enum product_scale mode, int64_t outer, int64_t k) {
    switch (mode) {
    case PRODUCT_UNSCALED: return 0;
    case PRODUCT_TENSOR: return sizeof(float);
    case PRODUCT_VEC16:
    case PRODUCT_VEC32: {
        int64_t tiles =
            blocks_of(outer, TILE_ROWS) * blocks_of(k, mode == PRODUCT_VEC16 ? 64 : 128);
        return (size_t)tiles * TILE_BYTES;
    }
    case PRODUCT_VEC128: return (size_t)(blocks_of(k, 128) * outer) * sizeof(float);
    case PRODUCT_BLK128:
        return (size_t)(blocks_of(outer, 128) * round_up(blocks_of(k, 128), 4)) * sizeof(float);
    }
    return 0;
}

/* Scales as fake_quantize writes them, and the sizes of the operand. */
struct stored_scales {
    const uint8_t *codes;
    struct quantize_format format;
    int64_t columns; /* columns of the scales */
    int64_t outer, k;
    bool transposed;
};

static __device__ __forceinline__ uint8_t code_at(const struct stored_scales &s, int64_t outer,
                                                  int64_t k) {
    int64_t row = s.transposed ? k : outer, column = s.transposed ? outer : k;
    return s.codes[row / s.format.rows * s.columns + column / s.format.columns];
}

/* Tiles of 128 rows and 4 blocks along k, 512 bytes each: row r of a tile is at (r % 32) * 16 +
 * r / 32 * 4. Rows and blocks past the last are 0. A thread writes the 4 blocks of a row. */
static __global__ void __launch_bounds__(THREADS)
    tiles_kernel(uint32_t *out, int64_t count, int vector, struct stored_scales s) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    int64_t tiles = (s.k + 4 * vector - 1) / (4 * vector), tile = i / TILE_ROWS;
    int word = (int)(i % TILE_ROWS);
    int64_t outer = tile / tiles * TILE_ROWS + word % 4 * 32 + word / 4;
    int64_t k = tile % tiles * 4 * vector;
    uint32_t bytes = 0;
#pragma unroll
    for (int b = 0; b < 4; b++, k += vector)
        if (outer < s.outer && k < s.k) bytes |= (uint32_t)code_at(s, outer, k) << (8 * b);
    out[i] = bytes;
}

/* fp32 [k / 128, outer]. */
static __global__ void __launch_bounds__(THREADS)
    vectors_kernel(float *out, int64_t count, struct stored_scales s) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    out[i] = block_scale_value(code_at(s, i % s.outer, i / s.outer * 128), DTYPE_E8M0);
}

/* fp32 [outer / 128, k / 128], with columns added up to a multiple of 4. */
static __global__ void __launch_bounds__(THREADS)
    squares_kernel(float *out, int64_t count, struct stored_scales s) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t across = (s.k + 511) / 512 * 4, k = i % across * 128;
    if (i >= count) return;
    out[i] = k < s.k ? block_scale_value(code_at(s, i / across * 128, k), DTYPE_E8M0) : 0;
}

void cuda_arrange_block_scales(struct backend *be, void *out, const struct matmul_blocks *blocks,
                               enum product_scale mode, bool transposed, int64_t outer, int64_t k) {
    const struct stored_scales s = {(const uint8_t *)blocks->scales.data,
                                    blocks->format,
                                    tensor_columns(&blocks->scales),
                                    outer,
                                    k,
                                    transposed};
    int64_t count = (int64_t)(product_scale_bytes(mode, outer, k) / sizeof(float));
    unsigned grid = (unsigned)blocks_of(count, THREADS);
    cudaStream_t stream = cuda_state(be)->compute;
    if (mode == PRODUCT_VEC128)
        LAUNCH(vectors_kernel, grid, THREADS, 0, stream, (float *)out, count, s);
    else if (mode == PRODUCT_BLK128)
        LAUNCH(squares_kernel, grid, THREADS, 0, stream, (float *)out, count, s);
    else
        LAUNCH(tiles_kernel, grid, THREADS, 0, stream, (uint32_t *)out, count,
               mode == PRODUCT_VEC16 ? 16 : 32, s);
    cuda_launched(be, "arranging the scales of blocks");
}

static __global__ void alpha_kernel(float *alpha, const float *a, const float *b, float beta) {
    alpha[0] = *a * *b;
    alpha[1] = beta;
}

void cuda_multiply_tensor_scales(struct backend *be, float *alpha, const float *a, const float *b,
                                 float beta) {
    LAUNCH(alpha_kernel, 1, 1, 0, cuda_state(be)->compute, alpha, a, b, beta);
    cuda_launched(be, "multiplying the scales of tensors");
}
