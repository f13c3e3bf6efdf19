/* Attention of single queries over the keys and values of a cache.
 *
 * Each number of the cache is used once, or by the few query heads that share it, so memory
 * bandwidth is the limit. The keys of all heads of a position are adjacent, followed by the values:
 * a task processes blocks of positions with all heads, and reads runs of H_kv D numbers. Few
 * queries have their keys split among tasks, which store partial sums, merged in order, as in
 * Flash-Decoding (Dao, Haziza, Massa, Sizov 2023). Tasks follow from keys_from and the shapes. */
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
    LINE_FLOATS = 16,
    TASKS = 64 /* number of tasks that a few queries are split into */
};

struct sizes {
    int64_t queries; /* N */
    struct row_sizes row;
    int64_t part_keys, parts_max; /* keys of a task; tasks of a query with keys_max keys */
    int64_t partial_floats, buffer_floats;
    float inner;          /* as in struct attention_score */
    float exponent_scale; /* scores to powers of 2 */
};

/* Partial result of a part of the keys. The sums are relative to max. */
struct partial {
    float *max, *sum; /* [H]; the largest score, unscaled, and the sum of the weights */
    float *out;       /* [H D] */
};

/* Buffers of one thread. */
struct buffers {
    float *q;       /* [H D] */
    float *rows;    /* [ROWS][H_kv D] */
    float *weights; /* [H][KEYS] */
    struct partial block;
};

/* Keys first .. first + count - 1 of a query. */
struct key_block {
    const struct tensor *cache;
    const struct decode_keys *keys;
    int64_t stride, first, count;
};

static struct sizes sizes_of(const struct attention_decode_args *args) {
    const struct tensor *cache = args->cache;
    int64_t queries = tensor_rows(args->out), blocks = blocks_of(args->keys_max, KEYS);
    int64_t split = args->split_as > 0 ? args->split_as : queries;
    int64_t tasks = split < TASKS ? TASKS / split : 1;
    int64_t size = tensor_columns(args->out) / args->heads;
    struct row_sizes row = head_sizes(size, args->heads, args->kv_heads);
    struct attention_score score = attention_score(args->scale, args->softcap);
    assert(tensor_columns(args->out) == row.columns && tensor_columns(args->q) >= row.columns);
    assert(tensor_rows(args->q) == queries && tensor_columns(cache) >= 2 * row.kv_columns);
    assert(args->q->dtype == cache->dtype && split >= queries);
    int64_t partial_floats = round_up(2 * row.heads + row.columns, LINE_FLOATS);
    int64_t part_blocks = blocks_of(blocks, tasks);
    return (struct sizes){
        .queries = queries,
        .row = row,
        .part_keys = part_blocks * KEYS,
        .parts_max = blocks_of(blocks, part_blocks),
        .partial_floats = partial_floats,
        .buffer_floats =
            round_up(row.columns + ROWS * row.kv_columns + row.heads * KEYS, LINE_FLOATS) +
            partial_floats,
        .inner = score.inner,
        .exponent_scale = (float)(M_LOG2E / score.divisor),
    };
}

static struct partial partial_of(float *max, const struct sizes *sizes) {
    return (struct partial){max, max + sizes->row.heads, max + 2 * sizes->row.heads};
}

static struct partial partial_at(float *scratch, const struct sizes *sizes, int64_t index) {
    return partial_of(scratch + index * sizes->partial_floats, sizes);
}

static struct buffers buffers_at(float *scratch, const struct sizes *sizes, int64_t thread) {
    int64_t partials = sizes->queries * sizes->parts_max * sizes->partial_floats;
    float *block = scratch + partials + thread * sizes->buffer_floats;
    float *q = block + sizes->partial_floats, *rows = q + sizes->row.columns;
    return (struct buffers){q, rows, rows + ROWS * sizes->row.kv_columns, partial_of(block, sizes)};
}

/* Returns the value that is subtracted from scores before exp. If all scores of a block are -inf,
 * its weights are 0. */
static float shift_for(float max) {
    return max == -INFINITY ? 0 : max;
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

/* rows[i] = `size` columns of key + i of a block, widened. The next rows are prefetched: while
 * 16-bit rows are widened, too few loads are in flight. */
static void widen_keys(const float **rows, const struct key_block *block, float *buffer,
                       int64_t column, int64_t size, int64_t key, int64_t count) {
    const struct tensor *cache = block->cache;
    struct head_rows all = head_rows_at(cache, 0, column, size);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = block->first + key + i;
        if (cache->dtype != DTYPE_F32 && key + i + ROWS < block->count)
            head_row_prefetch(all, decode_key_row(block->keys, at + ROWS, block->stride), false);
        int64_t row = decode_key_row(block->keys, at, block->stride);
        rows[i] = dtype_widen(buffer + i * size, cache->data, cache->dtype,
                              (size_t)(row * all.stride + column), (size_t)size);
    }
}

/* weights[h][j] = q . key j of the block, for all heads. */
static void block_scores(const struct row_sizes *sizes, const struct buffers *buffers,
                         const float *q, const struct key_block *block) {
    int64_t size = sizes->head_size, group = sizes->group, heads = sizes->heads;
    int64_t column = tensor_columns(block->cache) - 2 * sizes->kv_columns;
    const float *k[ROWS];
    for (int64_t j = 0; j < block->count; j += ROWS) {
        int64_t count = block_length(j, block->count, ROWS);
        widen_keys(k, block, buffers->rows, column, sizes->kv_columns, j, count);
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
                         const struct key_block *block) {
    int64_t size = sizes->head_size, group = sizes->group, heads = sizes->heads;
    int64_t column = tensor_columns(block->cache) - sizes->kv_columns;
    const float *v[ROWS];
    memset(out, 0, (size_t)sizes->columns * sizeof *out);
    for (int64_t j = 0; j < block->count; j += ROWS) {
        int64_t count = block_length(j, block->count, ROWS);
        widen_keys(v, block, buffers->rows, column, sizes->kv_columns, j, count);
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

/* Adds the partial result `from` to `into`. */
static void merge(const struct sizes *sizes, const struct partial *into,
                  const struct partial *from) {
    int64_t size = sizes->row.head_size;
    for (int64_t h = 0; h < sizes->row.heads; h++) {
        float max = into->max[h] > from->max[h] ? into->max[h] : from->max[h];
        float old = exp2f((into->max[h] - shift_for(max)) * sizes->exponent_scale);
        float new = exp2f((from->max[h] - shift_for(max)) * sizes->exponent_scale);
        float *out = into->out + h * size;
        const float *more = from->out + h * size;
        for (int64_t d = 0; d < size; d++) out[d] = old * out[d] + new *more[d];
        into->sum[h] = old * into->sum[h] + new * from->sum[h];
        into->max[h] = max;
    }
}

/* Computes the partial result of a query for its keys from..to-1. */
static void query_part(const struct attention_decode_args *args, const struct sizes *sizes,
                       const struct buffers *buffers, const struct partial *partial, int64_t query,
                       int64_t from, int64_t to) {
    const struct tensor *q = args->q;
    const struct decode_keys *keys = &args->keys[query];
    struct key_block block = {args->cache, keys, args->stride, from, 0};
    int64_t first = decode_first_key(keys, args->window);
    if (block.first < first) block.first = first;
    int64_t end = smaller(to, decode_key_count(keys));
    const float *row = dtype_widen(buffers->q, q->data, q->dtype,
                                   (size_t)(query * tensor_columns(q)), (size_t)sizes->row.columns);
    if (block.first >= end) {
        for (int64_t i = 0; i < 2 * sizes->row.heads + sizes->row.columns; i++)
            partial->max[i] = i < sizes->row.heads ? -INFINITY : 0;
        return;
    }
    for (const struct partial *into = partial; block.first < end; block.first += KEYS) {
        block.count = block_length(block.first, end, KEYS);
        block_scores(&sizes->row, buffers, row, &block);
        if (sizes->inner != 0)
            cap_scores(buffers->weights, KEYS, sizes->row.heads, block.count, sizes->inner);
        block_softmax(sizes, buffers->weights, into, block.count);
        block_values(&sizes->row, buffers, into->out, &block);
        if (into != partial) merge(sizes, partial, into);
        into = &buffers->block;
    }
}

/* Merges the parts of one head into the first, and stores it. */
static void head_store(float *scratch, const struct sizes *sizes, const struct tensor *to,
                       int64_t query, int64_t head, int64_t parts) {
    int64_t size = sizes->row.head_size, at = head * size, first = query * parts;
    float *out = partial_at(scratch, sizes, first).out + at, max = -INFINITY, sum = 0;
    for (int64_t i = 0; i < parts; i++) {
        float other = partial_at(scratch, sizes, first + i).max[head];
        max = other > max ? other : max;
    }
    for (int64_t i = 0; i < parts; i++) {
        struct partial partial = partial_at(scratch, sizes, first + i);
        float factor = exp2f((partial.max[head] - shift_for(max)) * sizes->exponent_scale);
        sum += factor * partial.sum[head];
        for (int64_t d = 0; d < size; d++)
            out[d] = (i > 0 ? out[d] : 0) + factor * partial.out[at + d];
    }
    for (int64_t d = 0; d < size; d++) out[d] /= sum;
    dtype_store(to->data, to->dtype, (size_t)(query * sizes->row.columns + at), out, (size_t)size);
}

/* The bound on the partial results is that of any number of queries up to N: 32 queries in two
 * parts have more of them than 48 queries in one. */
size_t cpu_attention_decode_scratch(struct backend *be, const struct attention_decode_args *args) {
    struct sizes sizes = sizes_of(args);
    int64_t partials = sizes.queries * blocks_of(args->keys_max, KEYS);
    if (partials > TASKS) partials = sizes.queries > TASKS ? sizes.queries : TASKS;
    return (size_t)(partials * sizes.partial_floats + be->device.threads * sizes.buffer_floats) *
           sizeof(float);
}

void cpu_attention_decode(struct backend *be, const struct attention_decode_args *args) {
    struct sizes sizes = sizes_of(args);
    int64_t parts = blocks_of(args->keys_to - args->keys_from, sizes.part_keys);
    float *scratch = backend_workspace(be, cpu_attention_decode_scratch(be, args));
    assert(args->keys_from >= 0 && args->keys_from < args->keys_to);
    assert(args->keys_to <= args->keys_max);
#pragma omp parallel num_threads(be->device.threads) if (sizes.queries * parts > 1)
    {
        struct buffers buffers = buffers_at(scratch, &sizes, omp_get_thread_num());
#pragma omp for
        for (int64_t task = 0; task < sizes.queries * parts; task++) {
            struct partial partial = partial_at(scratch, &sizes, task);
            int64_t from = args->keys_from + task % parts * sizes.part_keys;
            query_part(args, &sizes, &buffers, &partial, task / parts, from,
                       from + sizes.part_keys);
        }
#pragma omp for
        for (int64_t i = 0; i < sizes.queries * sizes.row.heads; i++)
            head_store(scratch, &sizes, args->out, i / sizes.row.heads, i % sizes.row.heads, parts);
    }
}
