/* Causal attention, forward: the online softmax of Milakov and Gimelshein 2018 over blocks of keys,
 * as in FlashAttention (Dao et al. 2022). A task is a group of queries of one head. Tasks are
 * independent, so the result does not depend on their distribution over threads. Keys before the
 * first one of a group, or of a pair of vectors in it, are skipped. */
#include <assert.h>
#include <math.h>
#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"

enum {
    GROUP_MAX = 128,  /* queries of a task, for which a block of keys is widened once */
    TASKS_ENOUGH = 64 /* below this many tasks, groups are halved */
};

struct sizes {
    int64_t batch, length; /* B, T */
    struct row_sizes row;
    struct row_words packed;
    int64_t group, groups; /* queries of a task, tasks of a head */
    struct attention_score score;
    float exponent_scale; /* scores to powers of 2 */
};

/* Buffers of one thread. Columns are queries of the group. */
struct buffers {
    float *q, *out; /* [words][group], [columns][group] */
    float *k, *v;   /* [BLOCK][words]; v of pairs: [BLOCK / 2][columns] */
    float *rows;    /* [LANES][columns] */
    float *scores;  /* [BLOCK][PAIR] */
};

/* Online softmax of the queries of a group: the largest score so far, and the sum of exponentials
 * relative to it. */
struct softmax_state {
    vec max[GROUP_MAX / LANES], sum[GROUP_MAX / LANES];
};

static struct sizes sizes_of(const struct backend *be, const struct attention_forward_args *args) {
    int64_t batch = args->qkv->shape[0], length = args->qkv->shape[1];
    struct row_sizes row = row_sizes(args->qkv, args->heads, args->kv_heads);
    struct attention_score score = attention_score(args->scale, args->softcap);
    assert(row.head_size <= HEAD_SIZE_MAX && args->out->shape[2] == row.columns);
    const bool bf16 = args->qkv->dtype == DTYPE_BF16 && args->out->dtype == DTYPE_BF16;
    int64_t tasks = batch * row.heads * blocks_of(length, GROUP_MAX);
    int64_t group = tasks < TASKS_ENOUGH ? GROUP_MAX / 2 : GROUP_MAX;
    return (struct sizes){.batch = batch,
                          .length = length,
                          .row = row,
                          .packed = row_words(be, bf16, row.head_size),
                          .group = group,
                          .groups = blocks_of(length, group),
                          .score = score,
                          .exponent_scale = (float)(M_LOG2E / score.divisor)};
}

static struct buffers buffers_take(struct arena *arena, const struct sizes *sizes) {
    const struct row_words *row = &sizes->packed;
    return (struct buffers){.q = take_floats(arena, row->words * sizes->group),
                            .out = take_floats(arena, row->columns * sizes->group),
                            .k = take_floats(arena, BLOCK * row->words),
                            .v = take_floats(arena, BLOCK * row->words),
                            .rows = take_floats(arena, LANES * row->columns),
                            .scores = take_floats(arena, BLOCK * PAIR)};
}

/* Returns the bytes of one thread's buffers. */
static size_t buffers_bytes(const struct sizes *sizes) {
    struct arena arena = {0};
    buffers_take(&arena, sizes);
    return arena.used;
}

/* Replaces scores by weights: powers of 2 relative to the new maximum. Keys after a query, which
 * start at row `diagonal`, get weight 0. masked: queries may not have seen any key yet. Sets
 * *factor to the multiplier of earlier sums. */
static void softmax_update(float *scores, int64_t rows, int64_t diagonal, bool masked, float scale,
                           vec *max, vec *sum, vec factor[2]) {
    vec scale_vector = vec_splat(scale), new_max[2] = {max[0], max[1]};
    for (int64_t i = diagonal; i < rows; i++)
        for (int c = 0; c < 2; c++) {
            float *at = scores + i * PAIR + c * LANES;
            vec_store(at, vec_from_lane(vec_load(at), i - diagonal - c * LANES, -INFINITY));
        }
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < 2; c++)
            new_max[c] = vec_max(new_max[c], vec_load(scores + i * PAIR + c * LANES));
    /* The difference comes before the product with the scale: the other way the product of a large
     * maximum is rounded by much more than 1, and exponentials overflow. */
    vec shift[2], total[2];
    for (int c = 0; c < 2; c++) {
        shift[c] = new_max[c];
        if (masked)
            shift[c] = vec_select(new_max[c] == vec_splat(-INFINITY), vec_splat(0), shift[c]);
        factor[c] = vec_exp2((max[c] - shift[c]) * scale_vector);
        total[c] = sum[c] * factor[c];
    }
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < 2; c++) {
            float *at = scores + i * PAIR + c * LANES;
            vec weight = vec_exp2((vec_load(at) - shift[c]) * scale_vector);
            total[c] += weight;
            vec_store(at, weight);
        }
    for (int c = 0; c < 2; c++) max[c] = new_max[c], sum[c] = total[c];
}

/* Processes one pair of vectors of queries, from `query` on, with the block of keys from `key`
 * on. */
static void pair_attend(const struct sizes *sizes, const struct buffers *buffers, int64_t column,
                        int64_t query, int64_t key, int64_t keys, struct key_limits limits,
                        struct softmax_state *state) {
    int64_t skipped = first_key_of(limits, query, sizes->length) - key;
    skipped = skipped > 0 ? round_down(skipped, TILE_ROWS) : 0;
    keys = smaller(keys, query + PAIR - key) - skipped;
    if (keys <= 0) return;
    int64_t rows = round_up(keys, TILE_ROWS), packed = skipped * sizes->packed.words;
    key += skipped;
    scores_product(&sizes->packed, buffers->scores, PAIR, rows, buffers->k + packed,
                   buffers->q + column, sizes->group);
    if (sizes->score.inner != 0) cap_scores(buffers->scores, PAIR, rows, PAIR, sizes->score.inner);
    bool masked = mask_first_keys(buffers->scores, PAIR, rows, key, query, limits, sizes->length);
    vec factor[2];
    softmax_update(buffers->scores, rows, query - key, masked, sizes->exponent_scale,
                   state->max + column / LANES, state->sum + column / LANES, factor);
    if (sizes->packed.pairs) round_rows(buffers->scores, buffers->scores, PAIR, rows);
    weighted_product(&sizes->packed, buffers->out + column, sizes->group, sizes->row.head_size,
                     buffers->v + packed, buffers->scores, PAIR, keys, START_SCALE, factor);
}

static void group_load(const struct sizes *sizes, const struct buffers *buffers, struct head_rows q,
                       int64_t begin, int64_t queries, struct softmax_state *state) {
    const struct row_words *row = &sizes->packed;
    for (int64_t column = 0; column < round_up(queries, PAIR); column += LANES) {
        int64_t count = smaller(queries - column, LANES);
        head_rows_pack(buffers->rows, row, q, begin + column, count < 0 ? 0 : count, LANES);
        transpose(buffers->q + column, sizes->group, buffers->rows, row->words, LANES, row->words);
        state->max[column / LANES] = vec_splat(-INFINITY);
        state->sum[column / LANES] = vec_splat(0);
    }
    memset(buffers->out, 0, (size_t)(row->columns * sizes->group) * sizeof(float));
}

static void group_store(const struct sizes *sizes, const struct buffers *buffers,
                        struct head_rows out, float *lse, int64_t begin, int64_t queries,
                        const struct softmax_state *state) {
    int64_t width = sizes->packed.columns;
    for (int64_t column = 0; column < queries; column += LANES) {
        transpose(buffers->rows, width, buffers->out + column, sizes->group, width, LANES);
        for (int64_t lane = 0; lane < smaller(queries - column, LANES); lane++) {
            float sum = state->sum[column / LANES][lane], max = state->max[column / LANES][lane];
            int64_t query = begin + column + lane;
            head_rows_store(out, query, 1, buffers->rows + lane * width, width, 1.0f / sum);
            lse[query] = max / (float)sizes->score.divisor + logf(sum);
        }
    }
}

static void group_attend(const struct sizes *sizes, const struct buffers *buffers,
                         const struct attention_forward_args *args, int64_t head_index,
                         int64_t begin) {
    const struct row_sizes *row = &sizes->row;
    int64_t length = sizes->length, size = row->head_size;
    int64_t first = head_index / row->heads * length, head = head_index % row->heads;
    int64_t key_column = row->columns + head / row->group * size;
    int64_t queries = smaller(length - begin, sizes->group);
    struct head_rows q = head_rows_at(args->qkv, first, head * size, size);
    struct head_rows k = head_rows_at(args->qkv, first, key_column, size);
    struct head_rows v = head_rows_at(args->qkv, first, key_column + row->kv_columns, size);
    struct head_rows out = head_rows_at(args->out, first, head * size, size);
    struct key_limits limits = key_limits_at(args->first_keys, args->window, first);
    struct softmax_state state;
    group_load(sizes, buffers, q, begin, queries, &state);
    /* At multiples of PAIR, a pair of queries never begins inside a block after its first key. */
    int64_t first_key = round_down(first_key_of(limits, begin, length), PAIR);
    for (int64_t key = first_key; key < begin + queries; key += BLOCK) {
        int64_t keys = smaller(begin + queries - key, BLOCK);
        int64_t padded = round_up(keys, TILE_ROWS);
        float *values = sizes->packed.pairs ? buffers->k : buffers->v;
        head_rows_pack(values, &sizes->packed, v, key, keys, padded);
        if (sizes->packed.pairs) pair_rows(buffers->v, values, sizes->packed.columns, padded);
        head_rows_pack(buffers->k, &sizes->packed, k, key, keys, padded);
        for (int64_t column = 0; column < queries; column += PAIR)
            pair_attend(sizes, buffers, column, begin + column, key, keys, limits, &state);
    }
    group_store(sizes, buffers, out, args->lse + head_index * length, begin, queries, &state);
}

size_t cpu_attention_forward_scratch(struct backend *be,
                                     const struct attention_forward_args *args) {
    struct sizes sizes = sizes_of(be, args);
    return (size_t)be->device.threads * buffers_bytes(&sizes);
}

void cpu_attention_forward(struct backend *be, const struct attention_forward_args *args) {
    struct sizes sizes = sizes_of(be, args);
    int64_t heads = sizes.batch * sizes.row.heads;
    size_t bytes = buffers_bytes(&sizes);
    char *all_buffers = backend_workspace(be, cpu_attention_forward_scratch(be, args));
#pragma omp parallel num_threads(be->device.threads)
    {
        struct arena arena = {all_buffers + (size_t)omp_get_thread_num() * bytes, 0, bytes};
        struct buffers buffers = buffers_take(&arena, &sizes);
        /* The last groups see the most keys, so they come first. */
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < heads * sizes.groups; task++) {
            int64_t group = sizes.groups - 1 - task / heads;
            group_attend(&sizes, &buffers, args, task % heads, group * sizes.group);
        }
    }
    if (args->track_amax) cpu_find_amax(args->out, args->track_amax, false);
}
