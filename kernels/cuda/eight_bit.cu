#include "kernels/cuda/eight_bit.h"

#include "kernels/cuda/flat.h"
#include "kernels/float8.h"

/* ---- transposing */

enum {
    THREADS = 256,
    SIDE = 128,          /* of a tile, in bytes */
    WORDS = SIDE / 4,    /* in a row of it */
    UNIT = 16,           /* bytes that a thread moves at once */
    UNITS = SIDE / UNIT, /* in a row */
    WIDEN_CHUNKS = 4
};

/* Bytes j of a, b, c, d become word j. */
static __device__ __forceinline__ void transpose_words(uint32_t *to, uint32_t a, uint32_t b,
                                                       uint32_t c, uint32_t d) {
    uint32_t low = __byte_perm(a, b, 0x5140), high = __byte_perm(a, b, 0x7362);
    uint32_t low2 = __byte_perm(c, d, 0x5140), high2 = __byte_perm(c, d, 0x7362);
    to[0] = __byte_perm(low, low2, 0x5410);
    to[1] = __byte_perm(low, low2, 0x7632);
    to[2] = __byte_perm(high, high2, 0x5410);
    to[3] = __byte_perm(high, high2, 0x7632);
}

/* A tile lies in shared memory row by row; unit u of row r stands at place u ^ (r / 16), so that
 * neither those who write units of a row nor those who read words down a column meet in a bank. A
 * thread reads 16 rows of one word, four columns of bytes, and writes a unit to each. */
static __global__ void __launch_bounds__(THREADS)
    transpose_kernel(uint8_t *__restrict__ out, const uint8_t *__restrict__ in, int64_t rows,
                     int64_t columns) {
    __shared__ uint4 tile[SIDE][UNITS];
    int64_t first_row = (int64_t)blockIdx.y * SIDE, first_column = (int64_t)blockIdx.x * SIDE;
    int unit = (int)threadIdx.x % UNITS;
    for (int row = (int)threadIdx.x / UNITS; row < SIDE; row += THREADS / UNITS) {
        int64_t column = first_column + unit * UNIT;
        if (first_row + row < rows && column < columns)
            tile[row][unit ^ (row / UNIT)] =
                *(const uint4 *)(in + (first_row + row) * columns + column);
    }
    __syncthreads();
    int group = (int)threadIdx.x % UNITS, word = (int)threadIdx.x / UNITS;
    int64_t row = first_row + group * UNIT, column = first_column + word * 4;
    if (row >= rows || column >= columns) return;
    union {
        uint32_t words[4];
        uint4 unit;
    } packed[4];
    for (int i = 0; i < 4; i++) {
        uint32_t down[4], across[4];
        for (int j = 0; j < 4; j++) {
            const uint32_t *line = (const uint32_t *)tile[group * UNIT + i * 4 + j];
            down[j] = line[(word / 4 ^ group) * 4 + word % 4];
        }
        transpose_words(across, down[0], down[1], down[2], down[3]);
        for (int j = 0; j < 4; j++) packed[j].words[i] = across[j];
    }
    for (int j = 0; j < 4; j++) *(uint4 *)(out + (column + j) * rows + row) = packed[j].unit;
}

void cuda_transpose_8_bit(struct backend *be, const struct tensor *out, const struct tensor *in) {
    int64_t rows = tensor_rows(in), columns = tensor_columns(in);
    assert(rows % UNIT == 0 && columns % UNIT == 0 && tensor_count(out) == rows * columns);
    assert(aligned_to(out->data, UNIT) && aligned_to(in->data, UNIT));
    dim3 grid((unsigned)blocks_of(columns, SIDE), (unsigned)blocks_of(rows, SIDE));
    assert(grid.y <= 65535);
    LAUNCH(transpose_kernel, grid, THREADS, 0, cuda_state(be)->compute, (uint8_t *)out->data,
           (const uint8_t *)in->data, rows, columns);
    cuda_launched(be, "transposing an operand of 8 bits");
}

/* ---- widening */

template <bool WHOLE, bool E4M3>
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
        for (int k = 0; k < PACK; k++) values[k] = f8_widen(codes[c][k], E4M3);
        store_flat<WHOLE, PACK>(out + i, values, count - i);
    }
}

template <bool E4M3>
static __global__ void __launch_bounds__(THREADS)
    widen_kernel(__nv_bfloat16 *__restrict__ out, const uint8_t *__restrict__ in, int64_t count,
                 bool aligned) {
    constexpr int SHARE = THREADS * WIDEN_CHUNKS * PACK;
    int64_t first = (int64_t)blockIdx.x * SHARE;
    if (aligned && first + SHARE <= count) widen_share<true, E4M3>(out, in, first, count);
    else widen_share<false, E4M3>(out, in, first, count);
}

void cuda_widen_8_bit(struct backend *be, const struct tensor *out, const struct tensor *in) {
    int64_t count = tensor_count(in);
    unsigned blocks = (unsigned)blocks_of(count, THREADS * WIDEN_CHUNKS * PACK);
    bool aligned = aligned_to(out->data, 16) && aligned_to(in->data, PACK);
    __nv_bfloat16 *to = (__nv_bfloat16 *)out->data;
    const uint8_t *from = (const uint8_t *)in->data;
    assert(out->dtype == DTYPE_BF16 && dtype_is_8_bit(in->dtype) && tensor_count(out) == count);
    if (in->dtype == DTYPE_E4M3)
        LAUNCH(widen_kernel<true>, blocks, THREADS, 0, cuda_state(be)->compute, to, from, count,
               aligned);
    else
        LAUNCH(widen_kernel<false>, blocks, THREADS, 0, cuda_state(be)->compute, to, from, count,
               aligned);
    cuda_launched(be, "widening an operand of 8 bits");
}
