#include "kernels/cpu/few_rows.h"

#include <omp.h>

#include "kernels/arena.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dequantize.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/vector.h"

enum {
    CHUNK = 2 * LANES,                  /* elements of b that are widened together */
    GROUP = VECTOR_BYTES == 64 ? 8 : 4, /* rows of a that are multiplied together */
    SUMS = VECTOR_BYTES == 64 ? 32 : 8, /* sums of a group that are computed together */
    STREAMS = 8,                        /* most rows of b that are read at a time */
    COLUMNS = 32,                       /* outputs of a row that a thread computes at a time */
    WIDE = 128,                         /* the same if b is not transposed */
    DEPTH = 8,                          /* rows of b whose products are added together then */
};

/* Dtypes of b: X(NAME, argument). Without F16C widening fp16 takes longer than reading it, so it
 * should not be done once a group. */
#ifdef __F16C__
#define HALVES(X, argument) X(F16, argument) X(BF16, argument)
#else
#define HALVES(X, argument) X(BF16, argument)
#endif

typedef uint32_t uvec __attribute__((vector_size(VECTOR_BYTES), may_alias));

bool few_rows_fits(const struct matmul_args *args) {
#define X(NAME, b) || (b) == DTYPE_##NAME
    bool half = false HALVES(X, args->b->dtype);
#undef X
    return half && !args->transpose_a && !matmul_scales(args) && tensor_rows(args->a) <= FEW_ROWS;
}

/* Returns the bytes of the widened rows of a, and of a panel of b. */
static size_t packed_bytes(const struct matmul_args *args) {
    return (size_t)round_up(tensor_count(args->a) * (int64_t)sizeof(float), VECTOR_BYTES);
}
static size_t panel_bytes(const struct matmul_args *args) {
    return args->b_stored ? dtype_size(args->b->dtype, COLUMNS * tensor_columns(args->b)) : 0;
}

size_t few_rows_scratch(const struct backend *be, const struct matmul_args *args) {
    return packed_bytes(args) + (size_t)be->device.threads * panel_bytes(args);
}

/* Widens a chunk of b. Of bf16 the even elements come first, then the odd ones: each is half of a
 * 32-bit word, and one instruction clears the other half. */
static inline __attribute__((always_inline)) void widen(vec out[2], const enum dtype dtype,
                                                        const void *b, int64_t at) {
    const uint16_t *half = (const uint16_t *)b + at;
    if (dtype == DTYPE_BF16) {
        uvec words;
        memcpy(&words, half, sizeof words);
        out[0] = (vec)(words << 16), out[1] = (vec)(words & 0xffff0000);
        return;
    }
#if VECTOR_BYTES == 64
    out[0] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)half));
    out[1] = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(half + LANES)));
#elif defined __F16C__
    out[0] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)half));
    out[1] = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(half + LANES)));
#endif
}

/* Returns the index of element i of a chunk in the order of `widen`. */
static inline int widened_index(enum dtype dtype, int i) {
    return dtype == DTYPE_BF16 ? i / 2 + i % 2 * LANES : i;
}

/* Adds bias and old values of out to `count` sums of a row, from a column on, and stores them. */
static void store_sums(float *sums, const struct matmul_args *args, int64_t row, int64_t column,
                       int64_t count) {
    float buffer[WIDE];
    const struct tensor *out = matmul_sum(args), *bias = args->bias;
    size_t at = (size_t)(row * tensor_columns(out) + column);
    if (bias) {
        const float *values =
            dtype_widen(buffer, bias->data, bias->dtype, (size_t)column, (size_t)count);
        for (int64_t i = 0; i < count; i++) sums[i] += values[i];
    }
    if (args->accumulate) {
        const float *old = dtype_widen(buffer, out->data, out->dtype, at, (size_t)count);
        for (int64_t i = 0; i < count; i++) sums[i] += old[i];
    }
    dtype_store(out->data, out->dtype, at, sums, (size_t)count);
}

/* ---- b transposed: sums along its rows */

/* Returns how many rows of a form the next group, of those left. */
static inline int64_t group_rows(int64_t left) {
    return left >= GROUP ? GROUP : left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

/* Widens a group of rows of a. Their chunks alternate, so that those of all rows are adjacent;
 * elements after the last whole chunk do, too. */
static void pack_rows(float *packed, const struct matmul_args *args, int64_t first, int64_t rows) {
    const struct tensor *a = args->a;
    int64_t k = tensor_columns(a);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t at = 0; at < k; at += CHUNK) {
            float buffer[CHUNK];
            int64_t n = block_length(at, k, CHUNK);
            const float *values =
                dtype_widen(buffer, a->data, a->dtype, (size_t)((first + row) * k + at), (size_t)n);
            float *to = packed + at * rows + row * n;
            for (int i = 0; i < n; i++)
                to[n == CHUNK ? widened_index(args->b->dtype, i) : i] = values[i];
        }
}

/* sums[i * COLUMNS + j step] = row i of the group . row j step of b, whose first row begins at
 * element `at`. */
static inline __attribute__((always_inline)) void dots(const int rows, const int streams,
                                                       const enum dtype dtype, float *sums,
                                                       const float *packed, const void *b,
                                                       int64_t at, int64_t k, int64_t step) {
    const int64_t whole = k / CHUNK * CHUNK, last = k - whole;
    vec sum[GROUP][STREAMS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (int j = 0; j < streams; j++) sum[i][j] = vec_splat(0);
    for (int64_t c = 0; c < whole; c += CHUNK, packed += rows * CHUNK)
#pragma GCC unroll 8
        for (int j = 0; j < streams; j++) {
            vec right[2];
            widen(right, dtype, b, at + j * step * k + c);
#pragma GCC unroll 8
            for (int i = 0; i < rows; i++) {
                const float *left = packed + i * CHUNK;
                sum[i][j] = vec_fma(vec_load_any(left), right[0], sum[i][j]);
                sum[i][j] = vec_fma(vec_load_any(left + LANES), right[1], sum[i][j]);
            }
        }
#pragma GCC unroll 8
    for (int j = 0; j < streams; j++) {
        float buffer[CHUNK];
        const float *right = buffer;
        if (last > 0)
            right =
                dtype_widen(buffer, b, dtype, (size_t)(at + j * step * k + whole), (size_t)last);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float *out = &sums[i * COLUMNS + j * step];
            *out = vec_sum(sum[i][j]);
            for (int64_t c = 0; c < last; c++) *out = fma_f32(packed[i * last + c], right[c], *out);
        }
    }
}

/* The same for `columns` rows of b, which begin at element `at`. They are read as several streams,
 * far apart, because processors prefetch a few long streams best. */
static inline __attribute__((always_inline)) void group_dots(const int rows, const enum dtype dtype,
                                                             float *sums, const float *packed,
                                                             const void *b, int64_t at, int64_t k,
                                                             int64_t columns) {
    const int streams = SUMS / rows < STREAMS ? SUMS / rows : STREAMS;
    const int64_t step = columns / streams;
    for (int64_t j = 0; j < step; j++)
        dots(rows, streams, dtype, sums + j, packed, b, at + j * k, k, step);
    for (int64_t j = step * streams; j < columns; j++)
        dots(rows, 1, dtype, sums + j, packed, b, at + j * k, k, 0);
}

/* A function for each number of rows and each dtype, so that the compiler knows both. */
static void any_dots(int64_t rows, enum dtype dtype, float *sums, const float *packed,
                     const void *b, int64_t at, int64_t k, int64_t columns) {
#define CASE(NAME, rows)                                                 \
    case (rows)*DTYPE_COUNT + DTYPE_##NAME:                              \
        group_dots(rows, DTYPE_##NAME, sums, packed, b, at, k, columns); \
        break;
    switch (rows * DTYPE_COUNT + dtype) {
        HALVES(CASE, 1)
        HALVES(CASE, 2)
        HALVES(CASE, 4)
#if VECTOR_BYTES == 64
        HALVES(CASE, 8)
#endif
    }
#undef CASE
}

/* Dequantizes `count` elements of b from `first` on, of matrices one after another. */
static void read_stored(void *panel, enum dtype dtype, const struct stored_values *stored,
                        int64_t first, int64_t count) {
    for (char *out = panel; count > 0; stored++) {
        const int64_t all = stored->weight->count,
                      n = first < all ? block_length(first, all, count) : 0;
        if (n > 0) stored_values_write(stored, dtype, out, first, first + n);
        out += dtype_size(dtype, n), count -= n;
        first = n > 0 ? 0 : first - all;
    }
}

static void multiply_transposed(const struct matmul_args *args, float *packed) {
    const struct tensor *b = args->b;
    int64_t m = tensor_rows(args->a), n = tensor_rows(b), k = tensor_columns(b);
    const int matrices = args->b_stored ? args->b_stored->count : 0;
    struct stored_values stored[STORED_MAX];
    for (int i = 0; i < matrices; i++) stored_values_list(&stored[i], args->b_stored->weights[i]);
    for (int64_t row = 0; row < m; row += group_rows(m - row))
        pack_rows(packed + row * k, args, row, group_rows(m - row));
#pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < n; column += COLUMNS) {
        float sums[FEW_ROWS * COLUMNS];
        int64_t columns = block_length(column, n, COLUMNS), at = column * k;
        const void *values = b->data;
        if (matrices > 0) {
            char *panel = (char *)packed + packed_bytes(args) +
                          (size_t)omp_get_thread_num() * panel_bytes(args);
            read_stored(panel, b->dtype, stored, at, columns * k);
            values = panel, at = 0;
        }
        for (int64_t row = 0; row < m; row += group_rows(m - row))
            any_dots(group_rows(m - row), b->dtype, sums + row * COLUMNS, packed + row * k, values,
                     at, k, columns);
        for (int64_t row = 0; row < m; row++)
            store_sums(sums + row * COLUMNS, args, row, column, columns);
    }
}

/* ---- b not transposed: sums of its rows */

/* sums[0 .. columns - 1] += a[0 .. depth - 1] times as many rows of b, n apart, from element `at`
 * on. Whole chunks of sums are in the order of `widen`. */
static inline __attribute__((always_inline)) void add_rows(const enum dtype dtype, float *sums,
                                                           const float *a, const void *b,
                                                           int64_t at, int64_t n, int64_t depth,
                                                           int64_t columns) {
    int64_t c = 0;
    for (; c + CHUNK <= columns; c += CHUNK) {
        vec low = vec_load_any(sums + c), high = vec_load_any(sums + c + LANES);
        for (int64_t d = 0; d < depth; d++) {
            vec right[2], left = vec_splat(a[d]);
            widen(right, dtype, b, at + d * n + c);
            __builtin_prefetch((const uint16_t *)b + at + (d + DEPTH) * n + c);
            low = vec_fma(left, right[0], low), high = vec_fma(left, right[1], high);
        }
        vec_store_any(sums + c, low), vec_store_any(sums + c + LANES, high);
    }
    for (int64_t d = 0; d < depth && c < columns; d++) {
        float buffer[CHUNK];
        const float *right =
            dtype_widen(buffer, b, dtype, (size_t)(at + d * n + c), (size_t)(columns - c));
        for (int64_t i = c; i < columns; i++) sums[i] = fma_f32(a[d], right[i - c], sums[i]);
    }
}

static void any_rows(enum dtype dtype, float *sums, const float *a, const void *b, int64_t at,
                     int64_t n, int64_t depth, int64_t columns) {
#define X(NAME, dtype) \
    if ((dtype) == DTYPE_##NAME) add_rows(DTYPE_##NAME, sums, a, b, at, n, depth, columns);
    HALVES(X, dtype)
#undef X
}

static void multiply_plain(const struct matmul_args *args, float *wide) {
    const struct tensor *a = args->a, *b = args->b;
    int64_t m = tensor_rows(a), n = tensor_columns(b), k = tensor_rows(b);
    const float *left = dtype_widen(wide, a->data, a->dtype, 0, (size_t)(m * k));
#pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < n; column += WIDE) {
        float sums[FEW_ROWS][WIDE] = {{0}}, plain[WIDE];
        int64_t columns = block_length(column, n, WIDE), whole = columns / CHUNK * CHUNK;
        for (int64_t d = 0; d < k; d += DEPTH)
            for (int64_t row = 0; row < m; row++)
                any_rows(b->dtype, sums[row], left + row * k + d, b->data, d * n + column, n,
                         block_length(d, k, DEPTH), columns);
        for (int64_t row = 0; row < m; row++) {
            for (int64_t c = 0; c < whole; c++)
                plain[c] = sums[row][c / CHUNK * CHUNK + widened_index(b->dtype, (int)(c % CHUNK))];
            memcpy(plain + whole, sums[row] + whole, (size_t)(columns - whole) * sizeof(float));
            store_sums(plain, args, row, column, columns);
        }
    }
}

void few_rows_multiply(const struct matmul_args *args, void *scratch) {
    if (args->transpose_b) multiply_transposed(args, scratch);
    else multiply_plain(args, scratch);
}
