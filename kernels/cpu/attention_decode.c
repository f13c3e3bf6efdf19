/* Causal attention for one query of each sequence, over the keys and values of a cache.
 *
 * Each number of the cache is used once, or by the few query heads that share it, so memory
 * bandwidth is the limit. The keys of all heads of a position are adjacent, followed by the values:
 * a task processes a block of positions with all heads, and reads runs of H_kv D numbers. Tasks
 * store partial sums, merged in order, as in Flash-Decoding (Dao, Haziza, Massa, Sizov 2023). The
 * tasks follow from the shapes alone. */
#include <assert.h>
#include <math.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"

enum {
    KEYS = 32, /* keys of a block: their weights take little of the cache, their partial sums little
                  time, and a context of 1024 still keeps 32 threads busy */
    ROWS = 4,  /* keys or values that share a load of the query or of the partial sums */
    LINE_FLOATS = 16
};

struct sizes {
    int64_t batch, length; /* B, T */
    struct row_sizes row;
    int64_t blocks_max; /* blocks of a whole sequence */
    int64_t partial_floats, buffer_floats;
    float exponent_scale; /* log2 e / sqrt D: scores to powers of 2 */
};

/* Partial result of a block of positions. The sums are relative to max. */
struct partial {
    float *max, *sum; /* [H]; the largest score, unscaled, and the sum of the weights */
    float *out;       /* [H D] */
};

/* Buffers of one thread. */
struct buffers {
    float *q;       /* [H D] */
    float *rows;    /* [ROWS][H_kv D] */
    float *weights; /* [H][KEYS] */
};

static struct sizes sizes_of(const struct attention_decode_args *args) {
    const struct tensor *cache = args->cache;
    int64_t size = tensor_columns(args->out) / args->heads;
    struct row_sizes row = head_sizes(size, args->heads, args->kv_heads);
    assert(tensor_columns(args->out) == row.columns && tensor_columns(args->q) >= row.columns);
    assert(tensor_rows(args->out) == cache->shape[0] && tensor_rows(args->q) == cache->shape[0]);
    assert(cache->rank == 3 && tensor_columns(cache) >= 2 * row.kv_columns);
    assert(args->q->dtype == cache->dtype);
    return (struct sizes){
        .batch = cache->shape[0],
        .length = cache->shape[1],
        .row = row,
        .blocks_max = blocks_of(cache->shape[1], KEYS),
        .partial_floats = round_up(2 * row.heads + row.columns, LINE_FLOATS),
        .buffer_floats =
            round_up(row.columns + ROWS * row.kv_columns + row.heads * KEYS, LINE_FLOATS),
        .exponent_scale = (float)(1.4426950408889634 / sqrt((double)row.head_size)),
    };
}

static struct partial partial_at(float *scratch, const struct sizes *sizes, int64_t index) {
    float *max = scratch + index * sizes->partial_floats;
    return (struct partial){max, max + sizes->row.heads, max + 2 * sizes->row.heads};
}

static struct buffers buffers_at(float *scratch, const struct sizes *sizes, int64_t thread) {
    int64_t partials = sizes->batch * sizes->blocks_max * sizes->partial_floats;
    float *q = scratch + partials + thread * sizes->buffer_floats;
    float *rows = q + sizes->row.columns;
    return (struct buffers){q, rows, rows + ROWS * sizes->row.kv_columns};
}

/* Loads from any address; a vec itself is aligned. */
static inline vec vec_load_any(const float *from) {
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void vec_store_any(float *to, vec value) {
    memcpy(to, &value, sizeof value);
}

/* Returns the value that is subtracted from scores before exp. If all scores of a block are -inf,
 * its weights are 0. */
static float shift_for(float max) {
    return max == -INFINITY ? 0 : max;
}

/* Returns the sum of all lanes, by halves: compilers' code for a summing loop costs more than the
 * loop. */
static inline float vec_sum(vec value) {
#define ROTATED(j, s) (((j) + (s)) % LANES)
#ifdef __clang__
#define ROTATE(s) __builtin_shufflevector(value, value, EACH_LANE(ROTATED, s))
#else
#define ROTATE(s) __builtin_shuffle(value, (ivec){EACH_LANE(ROTATED, s)})
#endif
#if VECTOR_BYTES == 64
    value += ROTATE(8);
#endif
#if VECTOR_BYTES >= 32
    value += ROTATE(4);
#endif
    value += ROTATE(2);
    value += ROTATE(1);
#undef ROTATED
#undef ROTATE
    return value[0];
}

/* scores[i] = q . rows[i][from..from+size], for `count` (1 or ROWS) rows. */
static inline __attribute__((always_inline)) void dots(const int count, float *scores,
                                                       const float *q, const float *const *rows,
                                                       int64_t from, int64_t size) {
    vec sums[ROWS];
    int64_t whole = size / LANES * LANES;
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) sums[i] = vec_splat(0);
    for (int64_t d = 0; d < whole; d += LANES)
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            sums[i] = vec_fma(vec_load_any(q + d), vec_load_any(rows[i] + from + d), sums[i]);
#pragma GCC unroll 4
    for (int i = 0; i < count; i++) {
        float sum = vec_sum(sums[i]);
        for (int64_t d = whole; d < size; d++) sum += q[d] * rows[i][from + d];
        scores[i] = sum;
    }
}

/* out += sum of weights[i] rows[i][from..from+size], for `count` (1 or ROWS) rows. */
static inline __attribute__((always_inline)) void add_rows(const int count, float *out,
                                                           const float *weights,
                                                           const float *const *rows, int64_t from,
                                                           int64_t size) {
    int64_t whole = size / LANES * LANES;
    for (int64_t d = 0; d < whole; d += LANES) {
        vec sum = vec_load_any(out + d);
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            sum = vec_fma(vec_splat(weights[i]), vec_load_any(rows[i] + from + d), sum);
        vec_store_any(out + d, sum);
    }
    for (int64_t d = whole; d < size; d++)
        for (int i = 0; i < count; i++) out[d] += weights[i] * rows[i][from + d];
}

/* rows[i] = row + i of `from`, widened. The next rows are prefetched: while 16-bit rows are
 * widened, too few loads are in flight. A row past the end is harmless, since nothing is read. */
static void widen_rows(const float **rows, struct head_rows from, float *buffer, int64_t row,
                       int64_t count) {
    const struct tensor *tensor = from.tensor;
    for (int64_t i = 0; i < count; i++) {
        if (tensor->dtype != DTYPE_F32) head_row_prefetch(from, row + i + ROWS, false);
        size_t offset = (size_t)((row + i) * from.stride + from.first);
        rows[i] = dtype_widen(buffer + i * from.size, tensor->data, tensor->dtype, offset,
                              (size_t)from.size);
    }
}

/* weights[h][j] = q . key of position row + j, for all heads. */
static void block_scores(const struct row_sizes *sizes, const struct buffers *buffers,
                         const float *q, const struct tensor *cache, int64_t row, int64_t keys) {
    int64_t size = sizes->head_size, group = sizes->group, heads = sizes->heads;
    int64_t column = tensor_columns(cache) - 2 * sizes->kv_columns;
    struct head_rows all_keys = head_rows_at(cache, row, column, sizes->kv_columns);
    const float *k[ROWS];
    for (int64_t j = 0; j < keys; j += ROWS) {
        int64_t count = block_length(j, keys, ROWS);
        widen_rows(k, all_keys, buffers->rows, j, count);
        for (int64_t h = 0, member = 0, from = 0; h < heads; h++) {
            float *scores = buffers->weights + h * KEYS + j;
            if (count == ROWS) dots(ROWS, scores, q + h * size, k, from, size);
            else
                for (int64_t i = 0; i < count; i++)
                    dots(1, scores + i, q + h * size, k + i, from, size);
            if (++member == group) member = 0, from += size;
        }
    }
}

/* Replaces scores by weights. */
static void block_softmax(const struct sizes *sizes, float *weights, const struct partial *partial,
                          int64_t keys) {
    vec scale = vec_splat(sizes->exponent_scale);
    for (int64_t h = 0; h < sizes->row.heads; h++, weights += KEYS) {
        vec maxima = vec_splat(-INFINITY), sums = vec_splat(0);
        float max = -INFINITY;
        for (int64_t j = keys; j % LANES; j++) weights[j] = -INFINITY;
        for (int64_t j = 0; j < keys; j += LANES)
            maxima = vec_max(vec_load_any(weights + j), maxima);
        for (int lane = 0; lane < LANES; lane++) max = maxima[lane] > max ? maxima[lane] : max;
        vec shift = vec_splat(shift_for(max));
        for (int64_t j = 0; j < keys; j += LANES) {
            vec weight = vec_exp2((vec_load_any(weights + j) - shift) * scale);
            vec_store_any(weights + j, weight);
            sums += weight;
        }
        partial->max[h] = max;
        partial->sum[h] = vec_sum(sums);
    }
}

static void block_values(const struct row_sizes *sizes, const struct buffers *buffers, float *out,
                         const struct tensor *cache, int64_t row, int64_t keys) {
    int64_t size = sizes->head_size, group = sizes->group, heads = sizes->heads;
    int64_t column = tensor_columns(cache) - sizes->kv_columns;
    struct head_rows all_values = head_rows_at(cache, row, column, sizes->kv_columns);
    const float *v[ROWS];
    memset(out, 0, (size_t)sizes->columns * sizeof *out);
    for (int64_t j = 0; j < keys; j += ROWS) {
        int64_t count = block_length(j, keys, ROWS);
        widen_rows(v, all_values, buffers->rows, j, count);
        for (int64_t h = 0, member = 0, from = 0; h < heads; h++) {
            const float *weights = buffers->weights + h * KEYS + j;
            if (count == ROWS) add_rows(ROWS, out + h * size, weights, v, from, size);
            else
                for (int64_t i = 0; i < count; i++)
                    add_rows(1, out + h * size, weights + i, v + i, from, size);
            if (++member == group) member = 0, from += size;
        }
    }
}

/* Merges the blocks of one head into the first, and stores it. */
static void head_store(float *scratch, const struct sizes *sizes, const struct tensor *to,
                       int64_t batch, int64_t head, int64_t blocks) {
    int64_t size = sizes->row.head_size, at = head * size, first = batch * sizes->blocks_max;
    float *out = partial_at(scratch, sizes, first).out + at, max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < blocks; i++) {
        float other = partial_at(scratch, sizes, first + i).max[head];
        max = other > max ? other : max;
    }
    for (int64_t i = 0; i < blocks; i++) {
        struct partial partial = partial_at(scratch, sizes, first + i);
        float factor = exp2f((partial.max[head] - shift_for(max)) * sizes->exponent_scale);
        sum += factor * partial.sum[head];
        for (int64_t d = 0; d < size; d++)
            out[d] = (i > 0 ? out[d] : 0) + factor * partial.out[at + d];
    }
    for (int64_t d = 0; d < size; d++) out[d] /= sum;
    dtype_store(to->data, to->dtype, (size_t)(batch * sizes->row.columns + at), out, (size_t)size);
}

/* Sized for the whole length, because later calls have larger positions. */
size_t cpu_attention_decode_scratch(struct backend *be, const struct attention_decode_args *args) {
    struct sizes sizes = sizes_of(args);
    int64_t floats = sizes.batch * sizes.blocks_max * sizes.partial_floats +
                     be->device.threads * sizes.buffer_floats;
    return (size_t)floats * sizeof(float);
}

void cpu_attention_decode(struct backend *be, const struct attention_decode_args *args) {
    struct sizes sizes = sizes_of(args);
    int64_t keys = args->position + 1 - args->first_key, blocks = blocks_of(keys, KEYS);
    float *scratch = backend_workspace(be, cpu_attention_decode_scratch(be, args));
    assert(args->position >= 0 && args->position < sizes.length);
    assert(args->first_key >= 0 && args->first_key <= args->position);
#pragma omp parallel num_threads(be->device.threads) if (sizes.batch * blocks > 1)
    {
        struct buffers buffers = buffers_at(scratch, &sizes, omp_get_thread_num());
#pragma omp for
        for (int64_t task = 0; task < sizes.batch * blocks; task++) {
            int64_t batch = task / blocks, block = task % blocks, first = block * KEYS;
            int64_t row = batch * sizes.length + args->first_key;
            int64_t count = block_length(first, keys, KEYS);
            struct partial partial = partial_at(scratch, &sizes, batch * sizes.blocks_max + block);
            const float *q;
            widen_rows(&q, head_rows_at(args->q, batch, 0, sizes.row.columns), buffers.q, 0, 1);
            block_scores(&sizes.row, &buffers, q, args->cache, row + first, count);
            block_softmax(&sizes, buffers.weights, &partial, count);
            block_values(&sizes.row, &buffers, partial.out, args->cache, row + first, count);
        }
#pragma omp for
        for (int64_t i = 0; i < sizes.batch * sizes.row.heads; i++)
            head_store(scratch, &sizes, args->out, i / sizes.row.heads, i % sizes.row.heads,
                       blocks);
    }
}
