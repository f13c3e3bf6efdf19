/* Shared by the two passes of attention: vectors, one register tile of a matrix product, packing.
 *
 * Both passes keep scores transposed, [key][query], with queries along the lanes of a vector. The
 * softmax then never reduces across lanes, and K and V, broadcast one number at a time, need no
 * transposition.
 *
 * Operands are rows of 32-bit words: numbers in fp32 or, if the device multiplies bf16, pairs of
 * numbers in bf16 that are adjacent in the dimension that a product reduces over. Then weights and
 * their gradients are rounded to bf16 too. Sums are in fp32. Internal to
 * kernels/cpu/attention_*.c. */
#pragma once

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/arena.h"
#include "kernels/attention_score.h"
#include "kernels/backend.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector.h"

/* Rows of the register tile: TILE_ROWS x 2 sums, 2 vectors of the right side and a broadcast number
 * must fit in the registers (32 with AVX-512, else 16). */
enum {
    TILE_ROWS = VECTOR_BYTES == 64 ? 8 : 4,
    PAIR = 2 * LANES, /* queries whose scores one register tile computes */
    BLOCK = 64,       /* keys, and in the backward pass queries, of a block */
    HEAD_SIZE_MAX = 256,
    ROWS_AHEAD = 32 /* rows that are prefetched ahead of their use */
};

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline vec vec_select(ivec mask, vec yes, vec no) {
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* Returns b if either is NaN. */
static inline vec vec_max(vec a, vec b) {
#if VECTOR_BYTES == 64
    return _mm512_max_ps(a, b);
#elif VECTOR_BYTES == 32
    return _mm256_max_ps(a, b);
#else
    return vec_select(a > b, a, b);
#endif
}

/* Lanes from `first` on keep their value; lanes before it become `other`. */
static inline vec vec_from_lane(vec value, int64_t first, float other) {
#define LANE_NUMBER(j, s) j
    ivec lane = {EACH_LANE(LANE_NUMBER, 0)};
#undef LANE_NUMBER
    return vec_select(lane >= (int32_t)first, value, vec_splat(other));
}

/* (2^r - 1) / r = E2_1 + E2_2 r + ... + E2_6 r^5 for |r| <= 1/2, minimax. */
#define E2_1 0.6931472f
#define E2_2 0.24022648f
#define E2_3 0.055503324f
#define E2_4 0.009618438f
#define E2_5 0.0013398901f
#define E2_6 0.00015353342f

/* 2^x within 2 ulp; 0 below -150, NaN stays NaN. exp_f32 of vector.h reduces exactly by ln 2, which
 * softmax does not need: its argument is a product, scaled by log2 e at no cost. */
static inline vec vec_exp2(vec x) {
    x = vec_max(vec_splat(-160.0f), x);
#if VECTOR_BYTES == 64
    vec n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vec rounder = vec_splat(0x1.8p23f), limit = vec_splat(160.0f);
    x = vec_select(x > limit, limit, x);
    vec rounded = x + rounder, n = rounded - rounder;
#endif
    vec r = x - n;
    vec p = vec_fma(vec_splat(E2_6), r, vec_splat(E2_5));
    p = vec_fma(p, r, vec_splat(E2_4));
    p = vec_fma(p, r, vec_splat(E2_3));
    p = vec_fma(p, r, vec_splat(E2_2));
    p = vec_fma(p, r, vec_splat(E2_1));
    p = vec_fma(p, r, vec_splat(1.0f));
#if VECTOR_BYTES == 64
    return _mm512_scalef_ps(p, n);
#else
    ivec twice_biased = (ivec)rounded - (ivec)rounder + 254, half = twice_biased >> 1;
    return p * (vec)(half << 23) * (vec)((twice_biased - half) << 23);
#endif
}

/* The instructions of AVX-512 bf16 are spelled out, in functions that BF16_CODE marks: the level
 * has processors without them. vec_dot returns sum + the products of both numbers of a pair,
 * vec_round the numbers of low in bf16, then those of high, and vec_pair the same as pairs. */
#if VECTOR_BYTES == 64
#define BF16_CODE    __attribute__((target("avx512bf16")))
#define SOURCE(j, s) ((j) | (16 + (j)) << 16)
static inline __attribute__((always_inline)) vec vec_dot(vec a, vec b, vec sum) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
static inline __attribute__((always_inline)) vec vec_round(vec low, vec high) {
    __asm__("vcvtne2ps2bf16 %0, %1, %0" : "+v"(low) : "v"(high));
    return low;
}
static inline __attribute__((always_inline)) vec vec_pair(vec low, vec high) {
    const __m512i order = (__m512i)(ivec){EACH_LANE(SOURCE, 0)};
    return (vec)_mm512_permutexvar_epi16(order, (__m512i)vec_round(low, high));
}
#else /* not used */
#define BF16_CODE
#define vec_dot              vec_fma
#define vec_round(low, high) (low)
#define vec_pair             vec_max
#endif

/* Rounds two vectors of each of `rows` rows to pairs of adjacent columns. out may be values, or
 * columns before them. */
static inline BF16_CODE void round_columns(float *out, const float *values, int64_t stride,
                                           int64_t rows) {
    for (int64_t i = 0; i < rows * stride; i += stride)
        vec_store_any(out + i, vec_round(vec_load(values + i), vec_load(values + i + LANES)));
}

/* out[i / 2][c] = rows i and i + 1 of two vectors of columns, as pairs. out may be values. */
static inline BF16_CODE void round_rows(float *out, const float *values, int64_t stride,
                                        int64_t rows) {
    for (int64_t i = 0; i < rows; i += 2, values += 2 * stride, out += PAIR)
        for (int64_t c = 0; c < PAIR; c += LANES)
            vec_store_any(out + c, vec_pair(vec_load(values + c), vec_load(values + stride + c)));
}

/* out[i / 2][c] = rows i and i + 1 of bf16[rows][width], as pairs. */
static inline void pair_rows(float *out, const float *bf16, int64_t width, int64_t rows) {
    typedef uint32_t word __attribute__((may_alias));
    typedef uint16_t half __attribute__((may_alias));
    for (int64_t i = 0; i < rows / 2 * width; i += width) {
        const half *low = (const half *)(bf16 + i), *high = low + width;
        word *to = (word *)(out + i);
        for (int64_t c = 0; c < width; c++) to[c] = low[c] | (uint32_t)high[c] << 16;
    }
}

/* Treatment of a product's destination: overwrite, add to, or scale and add. */
enum start { START_ZERO, START_ADD, START_SCALE };

/* out[i][c] = start + sum over j < count of a[i][j] b[j][c], for TILE_ROWS rows i and `vectors` (1
 * or 2) vectors of columns c, where a[i][j] is a[i * row_step + j * step]. The sum runs in
 * ascending j. factor: with START_SCALE, initial multiplier of each column. pairs: a and b are
 * pairs in bf16. */
static inline __attribute__((always_inline)) void
tile_sums(const bool pairs, const int vectors, float *out, int64_t out_stride, const float *a,
          int64_t row_step, int64_t step, const float *b, int64_t b_stride, int64_t count,
          const enum start start, const vec *factor) {
    vec sum[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int c = 0; c < vectors; c++) {
            sum[i][c] =
                start == START_ZERO ? vec_splat(0) : vec_load(out + i * out_stride + c * LANES);
            if (start == START_SCALE) sum[i][c] *= factor[c];
        }
#pragma GCC unroll 2
    for (int64_t j = 0; j < count; j++) {
        vec right[2];
#pragma GCC unroll 2
        for (int c = 0; c < vectors; c++) right[c] = vec_load(b + j * b_stride + c * LANES);
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++) {
            vec left = vec_splat(a[i * row_step + j * step]);
#pragma GCC unroll 2
            for (int c = 0; c < vectors; c++)
                sum[i][c] =
                    pairs ? vec_dot(left, right[c], sum[i][c]) : vec_fma(left, right[c], sum[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int c = 0; c < vectors; c++) vec_store(out + i * out_stride + c * LANES, sum[i][c]);
}

static inline BF16_CODE void tile_of_pairs(float *out, int64_t out_stride, const float *a,
                                           int64_t row_step, int64_t step, const float *b,
                                           int64_t b_stride, int64_t count, enum start start,
                                           const vec *factor) {
    tile_sums(true, 2, out, out_stride, a, row_step, step, b, b_stride, count, start, factor);
}

/* The same for any dtype; pairs have two vectors. */
static inline __attribute__((always_inline)) void
tile_product(bool pairs, const int vectors, float *out, int64_t out_stride, const float *a,
             int64_t row_step, int64_t step, const float *b, int64_t b_stride, int64_t count,
             const enum start start, const vec *factor) {
    if (pairs) tile_of_pairs(out, out_stride, a, row_step, step, b, b_stride, count, start, factor);
    else
        tile_sums(false, vectors, out, out_stride, a, row_step, step, b, b_stride, count, start,
                  factor);
}

/* Sizes of rows of one head. */
struct row_words {
    bool pairs;
    int64_t columns; /* D rounded up: columns of a sum, and of a row of pairs of rows */
    int64_t words;   /* the same in words of a row: columns, or half of them for pairs */
    int64_t used;    /* words of a row without padding */
};

/* bf16: all operands are. Small heads are not worth it: rows of pairs fill two vectors. */
static inline struct row_words row_words(const struct backend *be, bool bf16, int64_t head_size) {
    const bool pairs =
        VECTOR_BYTES == 64 && be->device.attention_bf16 && bf16 && head_size % PAIR == 0;
    const int64_t columns = round_up(head_size, LANES), each = pairs ? 2 : 1;
    return (struct row_words){pairs, columns, columns / each, head_size / each};
}

/* scores[key][query] = sum over d of k[key][d] q_transposed[d][query], for one pair of vectors of
 * queries. rows, here and below, is rounded up to TILE_ROWS. */
static inline void scores_product(const struct row_words *row, float *scores, int64_t stride,
                                  int64_t rows, const float *k, const float *q_transposed,
                                  int64_t q_stride) {
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        tile_product(row->pairs, 2, scores + i * stride, stride, k + i * row->words, row->words, 1,
                     q_transposed, q_stride, row->used, START_ZERO, NULL);
}

/* Replaces scores by tanh(inner scores), for a soft cap. */
static inline void cap_scores(float *scores, int64_t stride, int64_t rows, int64_t columns,
                              float inner) {
    for (int64_t i = 0; i < rows; i++, scores += stride)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) scores[j] = tanh_f32(scores[j] * inner);
}

/* out[d][query] = start + sum over keys of v[key][d] weights[key][query], for one pair. Keys of
 * bf16 are in pairs. */
static inline __attribute__((always_inline)) void
weighted_product(const struct row_words *row, float *out, int64_t out_stride, int64_t head_size,
                 const float *v, const float *weights, int64_t stride, int64_t keys,
                 const enum start start, const vec *factor) {
    if (row->pairs) keys = (keys + 1) / 2;
    for (int64_t d = 0; d < head_size; d += TILE_ROWS)
        tile_product(row->pairs, 2, out + d * out_stride, out_stride, v + d, 1, row->columns,
                     weights, stride, keys, start, factor);
}

/* out[lane][j] = in[j][lane]: each step exchanges blocks of half the width across the diagonal. */
static inline void transpose_vectors(float *out, int64_t out_stride, const float *in,
                                     int64_t in_stride) {
#define LOW(j, s)  ((j) & (s) ? LANES + (j) - (s) : (j))
#define HIGH(j, s) ((j) & (s) ? LANES + (j) : (j) + (s))
#ifdef __clang__
#define SHUFFLE(a, b, f, s) __builtin_shufflevector(a, b, EACH_LANE(f, s))
#else
#define SHUFFLE(a, b, f, s) __builtin_shuffle(a, b, (ivec){EACH_LANE(f, s)})
#endif
#define EXCHANGE(s)                                                            \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) if (!(i & (s))) { \
        vec a = x[i], b = x[i + (s)];                                          \
        x[i] = SHUFFLE(a, b, LOW, s);                                          \
        x[i + (s)] = SHUFFLE(a, b, HIGH, s);                                   \
    }
    vec x[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) x[i] = vec_load(in + i * in_stride);
#if VECTOR_BYTES == 64
    EXCHANGE(8)
#endif
#if VECTOR_BYTES >= 32
    EXCHANGE(4)
#endif
    EXCHANGE(2)
    EXCHANGE(1)
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) vec_store(out + i * out_stride, x[i]);
#undef LOW
#undef HIGH
#undef SHUFFLE
#undef EXCHANGE
}

/* out[c][r] = in[r][c]; rows and columns are multiples of LANES. */
static inline void transpose(float *out, int64_t out_stride, const float *in, int64_t in_stride,
                             int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES)
            transpose_vectors(out + c * out_stride + r, out_stride, in + r * in_stride + c,
                              in_stride);
}

/* Layout of a row of qkv: q | k | v. */
struct row_sizes {
    int64_t heads, kv_heads, group; /* H, H_kv, H / H_kv */
    int64_t head_size;              /* D */
    int64_t columns, kv_columns;    /* H D, H_kv D */
    int64_t stride;                 /* (H + 2 H_kv) D */
};

static inline struct row_sizes head_sizes(int64_t size, int heads, int kv_heads) {
    assert(size >= 1 && kv_heads >= 1 && heads % kv_heads == 0);
    return (struct row_sizes){.heads = heads,
                              .kv_heads = kv_heads,
                              .group = heads / kv_heads,
                              .head_size = size,
                              .columns = heads * size,
                              .kv_columns = kv_heads * size,
                              .stride = (heads + 2 * (int64_t)kv_heads) * size};
}

static inline struct row_sizes row_sizes(const struct tensor *qkv, int heads, int kv_heads) {
    struct row_sizes sizes =
        head_sizes(tensor_columns(qkv) / (heads + 2 * (int64_t)kv_heads), heads, kv_heads);
    assert(qkv->rank == 3 && sizes.stride == tensor_columns(qkv));
    return sizes;
}

/* Rows of one head in a tensor: row t starts at element first + t * stride. */
struct head_rows {
    const struct tensor *tensor;
    int64_t first, stride;
    int64_t size; /* D */
};

/* Returns the rows from a row and a column of the tensor on. */
static inline struct head_rows head_rows_at(const struct tensor *tensor, int64_t row,
                                            int64_t column, int64_t size) {
    int64_t stride = tensor_columns(tensor);
    return (struct head_rows){tensor, row * stride + column, stride, size};
}

/* Prefetches a row of the head: rows are several KiB apart, which hardware prefetchers do not
 * follow. A row past the end is harmless, since nothing is read. */
static inline void head_row_prefetch(struct head_rows head, int64_t t, bool for_writing) {
    size_t bytes = dtype_bytes(head.tensor->dtype);
    uintptr_t row = (uintptr_t)head.tensor->data + (size_t)(head.first + t * head.stride) * bytes;
    for (uintptr_t at = row & ~(uintptr_t)63; at < row + (size_t)head.size * bytes; at += 64)
        if (for_writing) __builtin_prefetch((const void *)at, 1);
        else __builtin_prefetch((const void *)at, 0);
}

/* Copies rows begin..begin+count to out[padded][words], widened unless they are pairs, and padded
 * with zeros. */
static inline void head_rows_pack(float *out, const struct row_words *words, struct head_rows head,
                                  int64_t begin, int64_t count, int64_t padded) {
    const struct tensor *in = head.tensor;
    for (int64_t t = 0; t < count; t++, out += words->words) {
        head_row_prefetch(head, begin + t + ROWS_AHEAD, false);
        size_t offset = (size_t)(head.first + (begin + t) * head.stride);
        const void *row = words->pairs ? (const uint16_t *)in->data + offset
                                       : (const void *)dtype_widen(out, in->data, in->dtype, offset,
                                                                   (size_t)head.size);
        if (row != out) memcpy(out, row, (size_t)words->used * sizeof *out);
        memset(out + words->used, 0, (size_t)(words->words - words->used) * sizeof *out);
    }
    memset(out, 0, (size_t)((padded - count) * words->words) * sizeof *out);
}

/* Stores rows[count][width] times factor, rounded, as rows begin..begin+count; overwrites `row`. */
static inline void head_rows_store(struct head_rows head, int64_t begin, int64_t count, float *row,
                                   int64_t width, float factor) {
    for (int64_t t = 0; t < count; t++, row += width) {
        head_row_prefetch(head, begin + t + ROWS_AHEAD, true);
        for (int64_t d = 0; d < width; d += LANES)
            vec_store(row + d, vec_load(row + d) * vec_splat(factor));
        dtype_store(head.tensor->data, head.tensor->dtype,
                    (size_t)(head.first + (begin + t) * head.stride), row, (size_t)head.size);
    }
}

static inline float *take_floats(struct arena *arena, int64_t count) {
    return arena_take(arena, (size_t)count * sizeof(float));
}

static inline int64_t round_down(int64_t value, int64_t multiple) {
    return value - value % multiple;
}

/* Limits of the keys that queries of one sequence read. */
struct key_limits {
    const int32_t *first_keys; /* [length], or NULL */
    int64_t window;            /* 0: none */
};

/* Returns the limits of one sequence. first_keys: optional [B, length]; row: the sequence's first.
 */
static inline struct key_limits key_limits_at(const int32_t *first_keys, int64_t window,
                                              int64_t row) {
    return (struct key_limits){first_keys ? first_keys + row : NULL, window};
}

/* Returns the first key of a query, 0 without limits. Queries past the end have that of the last
 * one. */
static inline int64_t first_key_of(struct key_limits limits, int64_t query, int64_t length) {
    int64_t row = smaller(query, length - 1);
    int64_t first = limits.first_keys ? limits.first_keys[row] : 0;
    int64_t inside = limits.window > 0 ? row - limits.window + 1 : 0;
    return first > inside ? first : inside;
}

/* Replaces the scores of keys before a query's first one by -inf, for one pair of vectors of
 * queries and `rows` keys from `key` on. Returns true if a query begins after `key`. Later queries
 * have later first keys. */
static inline bool mask_first_keys(float *scores, int64_t stride, int64_t rows, int64_t key,
                                   int64_t query, struct key_limits limits, int64_t length) {
    int64_t last = first_key_of(limits, query + PAIR - 1, length) - key;
    int32_t first[PAIR];
    if (last <= 0) return false;
    for (int j = 0; j < PAIR; j++)
        first[j] = (int32_t)(first_key_of(limits, query + j, length) - key);
    for (int64_t i = 0; i < smaller(last, rows); i++)
        for (int c = 0; c < 2; c++) {
            float *at = scores + i * stride + c * LANES;
            ivec lanes;
            memcpy(&lanes, first + c * LANES, sizeof lanes);
            vec_store(at, vec_select(lanes <= (int32_t)i, vec_load(at), vec_splat(-INFINITY)));
        }
    return true;
}
