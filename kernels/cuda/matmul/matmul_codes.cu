#include "kernels/cuda/matmul/matmul_codes.h"

#include "kernels/cuda/flat.h"
#include "kernels/cuda/matmul/matmul_blocks.h"
#include "kernels/cuda/tile.h"
#include "kernels/float8.h"

enum { THREADS = 256, WIDEN_CHUNKS = 4 };

/* ---- products */

static void set_blocks(struct codes_product *p, int major, const struct matmul_args *args) {
    const struct quantize_format *a = &args->a_blocks->format, *b = &args->b_blocks->format;
    int64_t along_a = args->transpose_a ? a->rows : a->columns;
    int64_t along_b = args->transpose_b ? b->columns : b->rows;
    int64_t block = along_a > along_b ? along_a : along_b; /* both are powers of two */
    if (block > p->unit) p->k_unit = (int)block;
    p->a_scale = cuda_blocks_mode(major, a, args->transpose_a);
    p->b_scale = cuda_blocks_mode(major, b, !args->transpose_b);
    p->possible = p->a_scale && p->b_scale && p->a_scale + p->b_scale != 2 * PRODUCT_BLK128;
}

struct codes_product cuda_codes_product(const struct cuda_products *products,
                                        const struct matmul_args *args) {
    struct codes_product p = {};
    if (!dtype_is_quantized(args->a->dtype)) return p;
    int64_t k = args->transpose_a ? tensor_rows(args->a) : tensor_columns(args->a);
    p.unit = p.k_unit = args->a->dtype == DTYPE_E2M1 ? 2 * EIGHT_BIT_UNIT : EIGHT_BIT_UNIT;
    if (args->a_blocks) {
        set_blocks(&p, products->major, args);
    } else {
        p.possible = products->eight_bit;
        if (!cuda_scales_vectors(args)) p.a_scale = p.b_scale = PRODUCT_TENSOR;
    }
    p.suits = p.possible && k % p.k_unit == 0 && tensor_rows(args->out) % p.unit == 0 &&
              tensor_columns(args->out) % p.unit == 0;
    return p;
}

/* ---- transposing */

/* columns: in bytes. */
template <int BITS>
static __global__ void __launch_bounds__(TILE_THREADS)
    transpose_kernel(uint8_t *__restrict__ out, const uint8_t *__restrict__ in, int64_t rows,
                     int64_t columns) {
    __shared__ __align__(16) struct tile tile;
    int64_t first = (int64_t)blockIdx.y * TILE_SIDE;
    int64_t column = (int64_t)blockIdx.x * TILE_SIDE + threadIdx.x % TILE_UNITS * TILE_UNIT;
    for (int row = (int)threadIdx.x / TILE_UNITS; row < TILE_SIDE; row += TILE_STEP)
        if (first + row < rows && column < columns)
            tile_put(&tile, row, *(const uint4 *)(in + (first + row) * columns + column));
    __syncthreads();
    tile_store<BITS>(out, &tile, rows, columns);
}

void cuda_transpose_codes(struct backend *be, const struct tensor *out, const struct tensor *in) {
    bool four = in->dtype == DTYPE_E2M1;
    int64_t rows = tensor_rows(in), columns = tensor_columns(in) / (four ? 2 : 1);
    assert(tensor_count(out) == tensor_count(in) && tensor_columns(out) == rows);
    assert(aligned_to(out->data, TILE_UNIT) && aligned_to(in->data, TILE_UNIT));
    LAUNCH((four ? transpose_kernel<4> : transpose_kernel<8>), tile_grid(rows, columns),
           TILE_THREADS, 0, cuda_state(be)->compute, (uint8_t *)out->data,
           (const uint8_t *)in->data, rows, columns);
    cuda_launched(be, "transposing an operand of codes");
}

/* ---- widening */

template <bool WHOLE, enum dtype DTYPE>
static __device__ __forceinline__ void widen_share(__nv_bfloat16 *out, const uint8_t *in,
                                                   int64_t first, int64_t count) {
    uint8_t codes[WIDEN_CHUNKS][PACK];
    int64_t at = first + (int64_t)threadIdx.x * PACK;
    for (int c = 0; c < WIDEN_CHUNKS; c++) {
        int64_t i = at + c * THREADS * PACK;
        if (WHOLE) {
            struct chunk<uint8_t, PACK> moved = load_chunk<PACK>(in + i);
            memcpy((void *)codes[c], &moved.bits, sizeof codes[c]);
        } else {
            for (int k = 0; k < PACK; k++) codes[c][k] = i + k < count ? in[i + k] : 0;
        }
    }
    for (int c = 0; c < WIDEN_CHUNKS; c++) {
        int64_t i = at + c * THREADS * PACK;
        float values[PACK];
        for (int k = 0; k < PACK; k++) values[k] = f8_widen(codes[c][k], DTYPE);
        store_flat<WHOLE, PACK>(out + i, values, count - i);
    }
}

template <enum dtype DTYPE>
static __global__ void __launch_bounds__(THREADS)
    widen_kernel(__nv_bfloat16 *__restrict__ out, const uint8_t *__restrict__ in, int64_t count,
                 bool aligned) {
    constexpr int SHARE = THREADS * WIDEN_CHUNKS * PACK;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) widen_share<true, DTYPE>(out, in, first, count);
    else widen_share<false, DTYPE>(out, in, first, count);
}

void cuda_widen_codes(struct backend *be, const struct tensor *out, const struct tensor *in) {
    int64_t count = tensor_count(in);
    unsigned blocks = (unsigned)blocks_of(count, THREADS * WIDEN_CHUNKS * PACK);
    bool aligned = aligned_to(out->data, 16) && aligned_to(in->data, PACK);
    __nv_bfloat16 *to = (__nv_bfloat16 *)out->data;
    const uint8_t *from = (const uint8_t *)in->data;
    assert(out->dtype == DTYPE_BF16 && dtype_is_f8(in->dtype) && tensor_count(out) == count);
#define X(NAME, ...)                                                                              \
    if (in->dtype == DTYPE_##NAME)                                                                \
        LAUNCH(widen_kernel<DTYPE_##NAME>, blocks, THREADS, 0, cuda_state(be)->compute, to, from, \
               count, aligned);
    DTYPES_QUANTIZED(X)
#undef X
    cuda_launched(be, "widening an operand of 8 bits");
}
