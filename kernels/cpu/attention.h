/* Shared by the two passes of attention: vectors, one register tile of a matrix product, packing.
 *
 * Both passes keep scores transposed, [key][query], with queries along the lanes of a vector. The
 * softmax then never reduces across lanes, and K and V, broadcast one number at a time, need no
 * transposition. Internal to kernels/cpu/attention_*.c. */
#pragma once

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#include "kernels/arena.h"
#include "kernels/attention_score.h"
#include "kernels/backend.h"
#include "kernels/cpu/vector.h"

/* Bytes of a vector, and rows of the register tile: TILE_ROWS x 2 sums, 2 vectors of the right
 * side and a broadcast number must fit in the registers (32 with AVX-512, else 16). */
#if defined __AVX512F__
#define VECTOR_BYTES 64
#define TILE_ROWS    8
#elif defined __AVX__
#define VECTOR_BYTES 32
#define TILE_ROWS    4
#else
#define VECTOR_BYTES 16
#define TILE_ROWS    4
#endif

enum {
    LANES = VECTOR_BYTES / 4,
    PAIR = 2 * LANES, /* queries whose scores one register tile computes */
    BLOCK = 64,       /* keys, and in the backward pass queries, of a block */
    HEAD_SIZE_MAX = 256,
    ROWS_AHEAD = 32 /* rows that are prefetched ahead of their use */
};

typedef float vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES), may_alias));

#if VECTOR_BYTES == 64
#define EACH_LANE(f, s)                                                                       \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), \
        f(10, s), f(11, s), f(12, s), f(13, s), f(14, s), f(15, s)
#elif VECTOR_BYTES == 32
#define EACH_LANE(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define EACH_LANE(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline vec vec_load(const float *from) {
    return *(const vec *)from;
}

static inline void vec_store(float *to, vec value) {
    *(vec *)to = value;
}

static inline vec vec_splat(float value) {
#if VECTOR_BYTES == 64
    return _mm512_set1_ps(value);
#elif VECTOR_BYTES == 32
    return _mm256_set1_ps(value);
#else
    return value - (vec){0};
#endif
}

/* Spelled out, since not every compiler contracts a * b + c by itself. */
static inline vec vec_fma(vec a, vec b, vec c) {
#if VECTOR_BYTES == 64
    return _mm512_fmadd_ps(a, b, c);
#elif VECTOR_BYTES == 32 && defined __FMA__
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
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

/* Treatment of a product's destination: overwrite, add to, or scale and add. */
enum start { START_ZERO, START_ADD, START_SCALE };

/* out[i][c] = start + sum over j < count of a[i][j] b[j][c], for TILE_ROWS rows i and `vectors` (1
 * or 2) vectors of columns c, where a[i][j] is a[i * row_step + j * step]. The sum runs in
 * ascending j. factor: with START_SCALE, initial multiplier of each column. */
static inline __attribute__((always_inline)) void
tile_product(const int vectors, float *out, int64_t out_stride, const float *a, int64_t row_step,
             int64_t step, const float *b, int64_t b_stride, int64_t count, enum start start,
             const vec *factor) {
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
            for (int c = 0; c < vectors; c++) sum[i][c] = vec_fma(left, right[c], sum[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 2
        for (int c = 0; c < vectors; c++) vec_store(out + i * out_stride + c * LANES, sum[i][c]);
}

/* scores[key][query] = sum over d of k[key][d] q_transposed[d][query], for one pair of vectors of
 * queries. rows, here and below, is rounded up to TILE_ROWS. */
static inline void scores_product(float *scores, int64_t stride, int64_t rows, const float *k,
                                  int64_t width, const float *q_transposed, int64_t q_stride,
                                  int64_t head_size) {
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        tile_product(2, scores + i * stride, stride, k + i * width, width, 1, q_transposed,
                     q_stride, head_size, START_ZERO, NULL);
}

/* Replaces scores by tanh(inner scores), for a soft cap. */
static inline void cap_scores(float *scores, int64_t stride, int64_t rows, int64_t columns,
                              float inner) {
    for (int64_t i = 0; i < rows; i++, scores += stride)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) scores[j] = tanh_f32(scores[j] * inner);
}

/* out[d][query] = start + sum over keys of v[key][d] weights[key][query], for one pair. */
static inline __attribute__((always_inline)) void
weighted_product(float *out, int64_t out_stride, int64_t head_size, const float *v, int64_t width,
                 const float *weights, int64_t stride, int64_t keys, enum start start,
                 const vec *factor) {
    for (int64_t d = 0; d < head_size; d += TILE_ROWS)
        tile_product(2, out + d * out_stride, out_stride, v + d, 1, width, weights, stride, keys,
                     start, factor);
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

/* Widens rows begin..begin+count into out[padded][width], padded with zeros. */
static inline void head_rows_pack(float *out, int64_t width, struct head_rows head, int64_t begin,
                                  int64_t count, int64_t padded) {
    for (int64_t t = 0; t < count; t++, out += width) {
        head_row_prefetch(head, begin + t + ROWS_AHEAD, false);
        size_t offset = (size_t)(head.first + (begin + t) * head.stride);
        const float *row =
            dtype_widen(out, head.tensor->data, head.tensor->dtype, offset, (size_t)head.size);
        if (row != out) memcpy(out, row, (size_t)head.size * sizeof *out);
        memset(out + head.size, 0, (size_t)(width - head.size) * sizeof *out);
    }
    memset(out, 0, (size_t)((padded - count) * width) * sizeof *out);
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
