/* Arithmetic of the fake cuBLASLt: column-major, in one of several summation orders, in fp32 or as
 * tensor cores add. */
#include "test/cuda_emulator/fake_product.h"
#include "test/cuda_emulator/tensor_core.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

namespace fake {

/* Returns the value of the code at index i: sign, two bits of exponent, one of fraction. */
static float from_four_bits(const void *p, uint64_t i) {
    static const float values[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int code = ((const uint8_t *)p)[i / 2] >> (i % 2 * 4) & 15;
    return code & 8 ? -values[code & 7] : values[code];
}

static float load(const void *p, int type, uint64_t i) {
    if (type == CUDA_R_4F_E2M1) return from_four_bits(p, i);
    if (is_eight_bit(type)) return from_eight_bits(((const uint8_t *)p)[i], type == CUDA_R_8F_E4M3);
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    if (type == CUDA_R_16BF) return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    return __half2float(((const __half *)p)[i]);
}
static void store(void *p, int type, uint64_t i, float value) {
    if (type == CUDA_R_32F) ((float *)p)[i] = value;
    else if (type == CUDA_R_16BF) ((__nv_bfloat16 *)p)[i] = __float2bfloat16(value);
    else ((__half *)p)[i] = __float2half(value);
}
static float as_type(int type, float value) {
    float raw = 0;
    store(&raw, type, 0, value);
    return load(&raw, type, 0);
}
static float as_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float *memory(uint64_t count) {
    float *values = (float *)calloc(count ? count : 1, sizeof *values);
    if (!values) abort();
    return values;
}

/* Multiplies the columns of a matrix, its vectors along k, by the scales of their blocks. */
static void apply_block_scales(float *values, uint64_t k, uint64_t outers, const void *scales,
                               int32_t mode) {
    for (uint64_t outer = 0; outer < outers; outer++)
        for (uint64_t i = 0; i < k; i++)
            values[outer * k + i] *= block_scale_of(scales, mode, outers, k, outer, i);
}

/* Returns the matrix (or its transpose) as fp32, column-major without gaps. */
static float *unpack(const void *data, const layout &l, bool transpose, bool tf32) {
    float *values = memory(l.rows * l.columns);
    for (uint64_t column = 0; column < l.columns; column++)
        for (uint64_t row = 0; row < l.rows; row++) {
            float value = load(data, l.type, column * (uint64_t)l.stride + row);
            uint64_t at = transpose ? row * l.columns + column : column * l.rows + row;
            values[at] = tf32 ? as_tf32(value) : value;
        }
    return values;
}

/* Returns a matrix transposed, and frees it. */
static float *transposed(float *of, uint64_t rows, uint64_t columns) {
    float *values = memory(rows * columns);
    for (uint64_t column = 0; column < columns; column++)
        for (uint64_t row = 0; row < rows; row++)
            values[row * columns + column] = of[column * rows + row];
    free(of);
    return values;
}

/* to[0..count) += scale * from. The hot loop. */
static __attribute__((optimize("O3"), no_sanitize("address", "undefined"))) void
add_scaled(float *__restrict__ to, const float *__restrict__ from, float scale, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) to[i] += scale * from[i];
}

static const uint64_t PANEL = 2048; /* rows of a that stay in the cache */

static emu::tensor_core_format format_of(int type) {
    return type == CUDA_R_8F_E4M3   ? emu::E4M3
           : type == CUDA_R_8F_E5M2 ? emu::E5M2
           : type == CUDA_R_16F     ? emu::F16
           : type == CUDA_R_16BF    ? emu::BF16
                                    : emu::TF32;
}

/* Without fast accumulation, each 128 products of 8 bits are added from zero, and their sum to the
 * others in fp32: so does cuBLASLt 12.8 on an H100, as the package mmaemu 0.1.0 describes it. */
static void multiply_on_tensor_cores(float *c, const float *a, const float *b, const problem &p,
                                     uint64_t first, uint64_t last) {
    bool restart = is_eight_bit(p.a.type) && !p.op->fast;
    uint64_t step = restart ? 128 : last - first;
    float part[PANEL];
    for (uint64_t row = 0; row < p.m; row += PANEL)
        for (uint64_t column = 0; column < p.n; column++)
            for (uint64_t i = first; i < last; i += step) {
                uint64_t count = p.m - row < PANEL ? p.m - row : PANEL;
                float *to = c + column * p.m + row;
                if (restart) memset(part, 0, sizeof part);
                emu::tensor_core_add(restart ? part : to, count, a + i * p.m + row, p.m,
                                     format_of(p.a.type), b + column * p.k + i, format_of(p.b.type),
                                     last - i < step ? last - i : step);
                if (restart) add_scaled(to, part, 1, count);
            }
}

/* c [m, n] += a [m, k] b [k, n] over k in first..last, all column-major. */
static void multiply(float *c, const float *a, const float *b, const problem &p, uint64_t first,
                     uint64_t last) {
    bool cores = p.a.type != CUDA_R_32F || p.op->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (cores && emu::tensor_cores_truncate() && !is_mode_of_blocks(p.op->mode_a)) {
        multiply_on_tensor_cores(c, a, b, p, first, last);
        return;
    }
    for (uint64_t row = 0; row < p.m; row += PANEL)
        for (uint64_t column = 0; column < p.n; column++)
            for (uint64_t i = first; i < last; i++)
                add_scaled(c + column * p.m + row, a + i * p.m + row, b[column * p.k + i],
                           p.m - row < PANEL ? p.m - row : PANEL);
}

/* Writes the splits of k to the workspace and adds them up, in an order that depends on the
 * scheme. */
static void multiply_split(float *c, const float *a, const float *b, const problem &p,
                           fake_algorithm order, float *workspace) {
    static unsigned calls;
    uint64_t count = p.m * p.n, part = (p.k + SPLITS - 1) / SPLITS;
    bool backwards = order == FAKE_SPLIT_IN_PLACE && calls++ % 2;
    for (uint64_t s = 0; s < SPLITS; s++) {
        uint64_t first = s * part < p.k ? s * part : p.k;
        memset(workspace + s * count, 0, count * sizeof(float));
        multiply(workspace + s * count, a, b, p, first, first + part < p.k ? first + part : p.k);
    }
    for (uint64_t s = 0; s < SPLITS; s++) {
        const float *from = workspace + (backwards ? SPLITS - 1 - s : s) * count;
        for (uint64_t i = 0; i < count; i++)
            c[i] += order == FAKE_SPLIT ? from[i] : as_type(p.d.type, from[i]);
    }
}

static void multiply_in_blocks(float *c, const float *a, const float *b, const problem &p) {
    float *block = memory(p.m * p.n);
    for (uint64_t first = 0; first < p.k; first += BLOCK) {
        memset(block, 0, p.m * p.n * sizeof(float));
        multiply(block, a, b, p, first, first + BLOCK < p.k ? first + BLOCK : p.k);
        add_scaled(c, block, 1, p.m * p.n);
    }
    free(block);
}

static float tanh_of(float x) {
    return emu::tensor_cores_truncate() ? emu::tanh_approx(x) : tanhf(x);
}
static float gelu(float x) {
    return 0.5f * x * (1 + tanh_of(0.7978845608f * (x + 0.044715f * x * x * x)));
}
static float gelu_slope(float x) {
    float t = tanh_of(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 0.134145f * x * x);
}

/* True if the library rounds sums to the type of D before it adds C or the bias: after a reduction
 * of splits, as documented; and, as seen on an H200 with 13.1, where operands have 16 bits: before
 * it adds C if all rows are multiples of 16 bytes, and before the bias of a GELU if those of k are
 * not. */
static bool rounds_before_adding(const problem &p, bool split, bool accumulates) {
    bool bias = p.op->epilogue & CUBLASLT_EPILOGUE_BIAS, forward = p.op->epilogue & 32;
    if (split && bias) return true;
    if (bits_of(p.a.type) != 16) return false;
    return accumulates ? p.k % 8 == 0 && p.m % 8 == 0 : bias && forward && p.k % 8 != 0;
}

/* Epilogue of the sums. GELU gets them before rounding. */
static void conclude(const problem &p, const float *sums, bool split, const matrices &with) {
    const operation &op = *p.op;
    float scale = 1;
    if (op.scale_a && !is_mode_of_blocks(op.mode_a)) scale = *(const float *)op.scale_a;
    if (op.scale_b && !is_mode_of_blocks(op.mode_b)) scale *= *(const float *)op.scale_b;
    bool bias = op.epilogue & CUBLASLT_EPILOGUE_BIAS, forward = op.epilogue & 32;
    bool backward = op.epilogue & 64, rounds = rounds_before_adding(p, split, with.beta != 0);
    for (uint64_t column = 0; column < p.n; column++)
        for (uint64_t row = 0; row < p.m; row++) {
            float value = with.alpha * scale * sums[column * p.m + row];
            uint64_t at = column * (uint64_t)p.d.stride + row;
            uint64_t aux_at = column * (uint64_t)op.aux_stride + row;
            if (rounds) value = as_type(p.d.type, value);
            if (with.beta != 0)
                value += with.beta * load(with.c, p.c.type, column * (uint64_t)p.c.stride + row);
            if (bias) value += load(op.vector, p.vector_type, row);
            if (forward) store(op.aux, p.aux_type, aux_at, value);
            if (forward) value = gelu(value);
            if (backward) value *= gelu_slope(load(op.aux, p.aux_type, aux_at));
            store(with.d, p.d.type, at, value);
        }
}

void compute(const problem &p, fake_algorithm order, const matrices &with) {
    bool tf32 = p.op->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    bool blocks = is_mode_of_blocks(p.op->mode_a);
    float *a = unpack(with.a, p.a, p.op->transpose_a && !blocks, tf32);
    float *b = unpack(with.b, p.b, p.op->transpose_b, tf32);
    if (blocks) {
        /* A was left as it is in memory, a vector along k in each column. */
        apply_block_scales(a, p.k, p.m, p.op->scale_a, p.op->mode_a);
        apply_block_scales(b, p.k, p.n, p.op->scale_b, p.op->mode_b);
        a = transposed(a, p.k, p.m);
    }
    float *sums = memory(p.m * p.n);
    if (order == FAKE_DIRECT) multiply(sums, a, b, p, 0, p.k);
    else if (order == FAKE_BLOCKS) multiply_in_blocks(sums, a, b, p);
    else multiply_split(sums, a, b, p, order, (float *)with.workspace);
    conclude(p, sums, order >= FAKE_SPLIT, with);
    free(sums);
    free(a);
    free(b);
}

} // namespace fake
