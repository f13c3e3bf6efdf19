/* Causal attention, backward (Dao et al. 2022, with the sums of FlashAttention 2): the weights are
 * recomputed from the saved log-sum-exp, one block of 64 queries by 64 keys at a time.
 *
 *     weight = exp(score - lse)                          dv = weight^T dout
 *     dweight = dout v^T                                 dq = dscore k
 *     dscore = weight (dweight - delta) / sqrt D         dk = dscore^T q
 *     delta = sum over d of dout * out
 *
 * With a soft cap dscore is multiplied by 1 - tanh^2.
 *
 * A task processes one head of keys, and the blocks of queries of each head that reads it. For each
 * block it computes dq, and adds to the sums of dk and dv of all keys from the first one of its
 * queries up to the block. If there are few heads of keys, the blocks are divided into parts, whose
 * sums are added in order afterwards. */
#include <assert.h>
#include <math.h>
#include <omp.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"

enum { TASKS_ENOUGH = 64, BLOCKS_PER_PART_MIN = 2 };

struct sizes {
    int64_t batch, length; /* B, T */
    struct row_sizes row;
    struct row_words packed;
    int64_t padded_length; /* T rounded up to BLOCK */
    int64_t blocks, parts; /* blocks of queries of a head, and parts of these blocks */
    struct attention_score score;
    float exponent_scale; /* scores to powers of 2 */
};

/* Buffers of one thread. */
struct buffers {
    float *k, *v;     /* [T padded][words] */
    float *key_pairs; /* k; of pairs its rows in pairs, [T padded / 2][columns] */
    float *q, *dout;  /* [BLOCK][words]; of pairs [BLOCK / 2][columns] */
    float *q_transposed, *dout_transposed; /* [words][BLOCK] */
    float *dq_transposed, *dq;             /* [columns][BLOCK], [BLOCK][columns] */
    float *weights, *dscores;              /* [BLOCK keys][BLOCK queries] */
    float *dscore_pairs;                   /* [BLOCK / 2][PAIR], pairs of keys */
    float *shift, *delta;                  /* [BLOCK]: -lse log2 e; sum of dout * out */
};

/* Sums of dk and dv: of one thread, or of one task if a head of keys has several parts. */
struct key_sums {
    float *dk, *dv; /* [T padded][columns] */
};

/* A head of keys and values, with their gradients. */
struct key_head {
    struct head_rows k, v, dk, dv;
    struct key_limits limits;
};

/* A head of queries, with its gradients, its output and log-sum-exp. */
struct query_head {
    struct head_rows q, dq, out, dout;
    const float *lse;
    struct key_limits limits;
};

static struct sizes sizes_of(const struct backend *be, const struct attention_backward_args *args) {
    int64_t batch = args->qkv->shape[0], length = args->qkv->shape[1];
    struct row_sizes row = row_sizes(args->qkv, args->heads, args->kv_heads);
    struct attention_score score = attention_score(args->scale, args->softcap);
    assert(row.head_size <= HEAD_SIZE_MAX && args->out->shape[2] == row.columns);
    assert(args->dout->shape[2] == row.columns && args->dqkv->shape[2] == row.stride);
    const bool bf16 = args->qkv->dtype == DTYPE_BF16 && args->dout->dtype == DTYPE_BF16 &&
                      args->out->dtype == DTYPE_BF16;
    int64_t blocks = blocks_of(length, BLOCK);
    int64_t parts = smaller(TASKS_ENOUGH / (batch * row.kv_heads), blocks / BLOCKS_PER_PART_MIN);
    return (struct sizes){.batch = batch,
                          .length = length,
                          .row = row,
                          .packed = row_words(be, bf16, row.head_size),
                          .padded_length = blocks * BLOCK,
                          .blocks = blocks,
                          .parts = parts < 1 ? 1 : parts,
                          .score = score,
                          .exponent_scale = (float)(M_LOG2E / score.divisor)};
}

static struct buffers buffers_take(struct arena *arena, const struct sizes *sizes) {
    const bool pairs = sizes->packed.pairs;
    int64_t block = BLOCK * sizes->packed.words, sums = BLOCK * sizes->packed.columns;
    int64_t keys = sizes->padded_length * sizes->packed.words;
    struct buffers buffers = {.k = take_floats(arena, keys),
                              .v = take_floats(arena, keys),
                              .q = take_floats(arena, block),
                              .dout = take_floats(arena, block),
                              .q_transposed = take_floats(arena, block),
                              .dout_transposed = take_floats(arena, block),
                              .dq_transposed = take_floats(arena, sums),
                              .dq = take_floats(arena, sums),
                              .weights = take_floats(arena, BLOCK * BLOCK),
                              .dscores = take_floats(arena, BLOCK * BLOCK),
                              .dscore_pairs = take_floats(arena, pairs ? BLOCK / 2 * PAIR : 0),
                              .shift = take_floats(arena, BLOCK),
                              .delta = take_floats(arena, BLOCK)};
    buffers.key_pairs = pairs ? take_floats(arena, keys) : buffers.k;
    return buffers;
}

/* Returns the bytes of one thread's buffers. */
static size_t buffers_bytes(const struct sizes *sizes) {
    struct arena arena = {0};
    buffers_take(&arena, sizes);
    return arena.used;
}

static int64_t key_sums_floats(const struct sizes *sizes) {
    return 2 * sizes->padded_length * sizes->packed.columns; /* a multiple of BLOCK */
}

static struct key_sums key_sums_at(const struct sizes *sizes, float *base, int64_t index) {
    float *dk = base + index * key_sums_floats(sizes);
    return (struct key_sums){.dk = dk, .dv = dk + key_sums_floats(sizes) / 2};
}

/* index: in B * H_kv. */
static struct key_head key_head(const struct sizes *sizes,
                                const struct attention_backward_args *args, int64_t index) {
    const struct row_sizes *row = &sizes->row;
    int64_t first = index / row->kv_heads * sizes->length, size = row->head_size;
    int64_t key = row->columns + index % row->kv_heads * size, value = key + row->kv_columns;
    return (struct key_head){.k = head_rows_at(args->qkv, first, key, size),
                             .v = head_rows_at(args->qkv, first, value, size),
                             .dk = head_rows_at(args->dqkv, first, key, size),
                             .dv = head_rows_at(args->dqkv, first, value, size),
                             .limits = key_limits_at(args->first_keys, args->window, first)};
}

/* index: in B * H. */
static struct query_head query_head(const struct sizes *sizes,
                                    const struct attention_backward_args *args, int64_t index) {
    const struct row_sizes *row = &sizes->row;
    int64_t first = index / row->heads * sizes->length, size = row->head_size;
    int64_t column = index % row->heads * size;
    return (struct query_head){.q = head_rows_at(args->qkv, first, column, size),
                               .dq = head_rows_at(args->dqkv, first, column, size),
                               .out = head_rows_at(args->out, first, column, size),
                               .dout = head_rows_at(args->dout, first, column, size),
                               .lse = args->lse + index * sizes->length,
                               .limits = key_limits_at(args->first_keys, args->window, first)};
}

/* Returns the first block of a part, such that parts have about the same number of (query, key)
 * pairs. */
static int64_t part_begin(const struct sizes *sizes, int64_t part) {
    int64_t block = 0, all = sizes->blocks * (sizes->blocks + 1);
    while (block * (block + 1) * sizes->parts < part * all) block++;
    return block;
}

/* Returns the first key that a block of queries reads, rounded down to a block. */
static int64_t block_first_key(const struct sizes *sizes, struct key_limits limits, int64_t block) {
    return round_down(first_key_of(limits, block * BLOCK, sizes->length), BLOCK);
}

/* Loads a block of rows, their transposition, and of bf16 their pairs. */
static void rows_load(const struct row_words *row, float *pairs, float *transposed, float *rows,
                      struct head_rows head, int64_t begin, int64_t count) {
    head_rows_pack(rows, row, head, begin, count, BLOCK);
    transpose(transposed, BLOCK, rows, row->words, BLOCK, row->words);
    if (row->pairs) pair_rows(pairs, rows, row->columns, BLOCK);
}

/* The same as vec_dot, with the instructions of the level. */
static vec dot_of_pairs(vec a, vec b, vec sum) {
    const ivec upper = (ivec){0} - 0x10000;
    sum = vec_fma((vec)((ivec)a << 16), (vec)((ivec)b << 16), sum);
    return vec_fma((vec)((ivec)a & upper), (vec)((ivec)b & upper), sum);
}

static void block_load(const struct sizes *sizes, const struct buffers *buffers,
                       const struct query_head *head, int64_t begin, int64_t queries) {
    const struct row_words *row = &sizes->packed;
    int64_t words = row->words;
    float *douts = row->pairs ? buffers->dq + BLOCK * words : buffers->dout;
    rows_load(row, buffers->q, buffers->q_transposed, row->pairs ? douts : buffers->q, head->q,
              begin, queries);
    rows_load(row, buffers->dout, buffers->dout_transposed, douts, head->dout, begin, queries);
    head_rows_pack(buffers->dq, row, head->out, begin, queries, BLOCK);
    for (int64_t i = 0; i < BLOCK; i++) {
        const float *dout = douts + i * words, *out = buffers->dq + i * words;
        vec sum = vec_splat(0);
        for (int64_t d = 0; d < words; d += LANES)
            sum = row->pairs ? dot_of_pairs(vec_load(dout + d), vec_load(out + d), sum)
                             : vec_fma(vec_load(dout + d), vec_load(out + d), sum);
        float delta = 0;
        for (int lane = 0; lane < LANES; lane++) delta += sum[lane];
        buffers->delta[i] = delta;
        buffers->shift[i] = i < queries ? head->lse[begin + i] * -(float)M_LOG2E : 0;
    }
    memset(buffers->dq_transposed, 0, (size_t)(row->columns * BLOCK) * sizeof(float));
}

/* Replaces scores by weights, and dweights by dscores without their scale, for one pair of vectors
 * of queries. Keys after a query, which start at row `diagonal`, get weight 0. */
static void softmax_backward(float *weights, float *dscores, int64_t rows, int64_t diagonal,
                             float scale, bool capped, const float *shift, const float *delta) {
    for (int64_t i = diagonal; i < rows; i++)
        for (int c = 0; c < 2; c++) {
            float *at = weights + i * BLOCK + c * LANES;
            vec_store(at, vec_from_lane(vec_load(at), i - diagonal - c * LANES, -INFINITY));
        }
    vec scale_vector = vec_splat(scale);
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < 2; c++) {
            int64_t at = i * BLOCK + c * LANES;
            vec score = vec_load(weights + at);
            /* The log-sum-exp of large scores is rounded by more than 1; a weight is at most 1. */
            vec below = -vec_fma(score, scale_vector, vec_load(shift + c * LANES));
            vec weight = vec_exp2(-vec_max(vec_splat(0), below));
            vec dscore = weight * (vec_load(dscores + at) - vec_load(delta + c * LANES));
            if (capped) { /* a masked score is -inf, and its weight 0 */
                score = vec_max(vec_splat(-1), score);
                dscore *= 1 - score * score;
            }
            vec_store(weights + at, weight);
            vec_store(dscores + at, dscore);
        }
}

/* sums[key][d] += sum over queries of weights[key][query] rows[query][d]. On the diagonal, only
 * queries from the key on count. ends [rows / TILE_ROWS]: number of queries that read any key of a
 * tile of rows. */
static void key_sums_add(const struct row_words *row, float *sums, const float *weights,
                         int64_t rows, const float *right, const int64_t *ends, bool diagonal) {
    const int64_t width = row->columns, each = row->pairs ? 2 : 1;
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        int64_t first = diagonal ? i : 0, d = 0, queries = ends[i / TILE_ROWS];
        if (queries <= first) continue;
        const float *left = weights + i * BLOCK + first / each, *at = right + first * row->words;
        int64_t count = blocks_of(queries - first, each);
        for (; d + PAIR <= width; d += PAIR)
            tile_product(row->pairs, 2, sums + i * width + d, width, left, BLOCK, 1, at + d, width,
                         count, START_ADD, NULL);
        if (d < width)
            tile_product(false, 1, sums + i * width + d, width, left, BLOCK, 1, at + d, width,
                         count, START_ADD, NULL);
    }
}

/* ends[i] = number of queries of a block that read any key of the i-th tile of rows from `key` on,
 * at most `queries`. They are the first ones, since later queries have later first keys. */
static void find_ends(int64_t ends[BLOCK / TILE_ROWS], struct key_limits limits, int64_t begin,
                      int64_t queries, int64_t key, int64_t length) {
    for (int64_t i = 0, end = 0; i < BLOCK / TILE_ROWS; i++) {
        int64_t next = key + (i + 1) * TILE_ROWS;
        while (end < queries && first_key_of(limits, begin + end, length) < next) end++;
        ends[i] = end;
    }
}

/* Gradients of the loaded block of queries, from `begin` on, and the block of keys from `key` on.
 */
static void run_tile(const struct sizes *sizes, const struct buffers *buffers,
                     const struct key_sums *sums, struct key_limits limits, int64_t begin,
                     int64_t queries, int64_t key) {
    const struct row_words *row = &sizes->packed;
    bool diagonal = key == begin;
    int64_t words = row->words, length = sizes->length, ends[BLOCK / TILE_ROWS];
    int64_t all_rows = round_up(smaller(length - key, BLOCK), TILE_ROWS);
    for (int64_t column = 0; column < queries; column += PAIR) {
        int64_t skipped = first_key_of(limits, begin + column, length) - key;
        skipped = skipped > 0 ? round_down(skipped, TILE_ROWS) : 0;
        int64_t rows = (diagonal ? smaller(all_rows, column + PAIR) : all_rows) - skipped;
        if (rows <= 0) continue;
        int64_t at = (key + skipped) * words;
        float *weights = buffers->weights + skipped * BLOCK + column;
        float *dscores = buffers->dscores + skipped * BLOCK + column;
        scores_product(row, weights, BLOCK, rows, buffers->k + at, buffers->q_transposed + column,
                       BLOCK);
        scores_product(row, dscores, BLOCK, rows, buffers->v + at,
                       buffers->dout_transposed + column, BLOCK);
        if (sizes->score.inner != 0) cap_scores(weights, BLOCK, rows, PAIR, sizes->score.inner);
        mask_first_keys(weights, BLOCK, rows, key + skipped, begin + column, limits, length);
        softmax_backward(weights, dscores, rows, diagonal ? column - skipped : rows,
                         sizes->exponent_scale, sizes->score.inner != 0, buffers->shift + column,
                         buffers->delta + column);
        if (row->pairs) {
            round_rows(buffers->dscore_pairs, dscores, BLOCK, rows);
            round_columns(weights - column / 2, weights, BLOCK, rows);
            round_columns(dscores - column / 2, dscores, BLOCK, rows);
        }
        weighted_product(row, buffers->dq_transposed + column, BLOCK, sizes->row.head_size,
                         buffers->key_pairs + at, row->pairs ? buffers->dscore_pairs : dscores,
                         row->pairs ? PAIR : BLOCK, rows, START_ADD, NULL);
    }
    find_ends(ends, limits, begin, queries, key, length);
    int64_t at_sums = key * row->columns;
    key_sums_add(row, sums->dv + at_sums, buffers->weights, all_rows, buffers->dout, ends,
                 diagonal);
    key_sums_add(row, sums->dk + at_sums, buffers->dscores, all_rows, buffers->q, ends, diagonal);
}

/* Processes a block of queries with all keys that it reads. */
static void block_run(const struct sizes *sizes, const struct buffers *buffers,
                      const struct key_sums *sums, const struct query_head *head, int64_t block) {
    int64_t begin = block * BLOCK, queries = smaller(sizes->length - begin, BLOCK);
    int64_t width = sizes->packed.columns, key = block_first_key(sizes, head->limits, block);
    block_load(sizes, buffers, head, begin, queries);
    for (; key <= begin; key += BLOCK)
        run_tile(sizes, buffers, sums, head->limits, begin, queries, key);
    transpose(buffers->dq, width, buffers->dq_transposed, BLOCK, width, BLOCK);
    head_rows_store(head->dq, begin, queries, buffers->dq, width, sizes->score.scale);
}

/* Processes one part of the `index`-th head of keys: dq of its queries, one head after another, and
 * sums for all keys from the first one that they read up to the last of them. */
static void part_run(const struct sizes *sizes, const struct buffers *buffers,
                     const struct key_sums *sums, const struct attention_backward_args *args,
                     int64_t index, int64_t part) {
    struct key_head keys = key_head(sizes, args, index);
    const struct row_words *row = &sizes->packed;
    int64_t group = sizes->row.group;
    int64_t first = part_begin(sizes, part), last = part_begin(sizes, part + 1);
    int64_t begin = block_first_key(sizes, keys.limits, first), at = begin * row->words;
    int64_t padded = last * BLOCK - begin, count = smaller(padded, sizes->length - begin);
    head_rows_pack(buffers->k + at, row, keys.k, begin, count, padded);
    head_rows_pack(buffers->v + at, row, keys.v, begin, count, padded);
    if (row->pairs) pair_rows(buffers->key_pairs + at, buffers->k + at, row->columns, padded);
    at = begin * row->columns;
    memset(sums->dk + at, 0, (size_t)(padded * row->columns) * sizeof(float));
    memset(sums->dv + at, 0, (size_t)(padded * row->columns) * sizeof(float));
    for (int64_t i = 0; i < group; i++) {
        struct query_head head = query_head(sizes, args, index * group + i);
        for (int64_t block = first; block < last; block++)
            block_run(sizes, buffers, sums, &head, block);
    }
}

/* Adds up, in order, the parts that include a block of keys, into the first of them, and stores it.
 * sums[0] belongs to the first part of the head. */
static void key_block_store(const struct sizes *sizes, float *sums, const struct key_head *head,
                            int64_t block) {
    int64_t begin = block * BLOCK, count = smaller(sizes->length - begin, BLOCK);
    int64_t width = sizes->packed.columns, at = begin * width, part = 0;
    while (part_begin(sizes, part + 1) <= block) part++;
    struct key_sums total = key_sums_at(sizes, sums, part);
    while (++part < sizes->parts &&
           block_first_key(sizes, head->limits, part_begin(sizes, part)) <= begin) {
        struct key_sums more = key_sums_at(sizes, sums, part);
        for (int64_t i = at; i < at + count * width; i += LANES) {
            vec_store(total.dk + i, vec_load(total.dk + i) + vec_load(more.dk + i));
            vec_store(total.dv + i, vec_load(total.dv + i) + vec_load(more.dv + i));
        }
    }
    head_rows_store(head->dk, begin, count, total.dk + at, width, sizes->score.scale);
    head_rows_store(head->dv, begin, count, total.dv + at, width, 1);
}

static int64_t key_sums_count(const struct backend *be, const struct sizes *sizes) {
    return sizes->parts > 1 ? sizes->batch * sizes->row.kv_heads * sizes->parts
                            : be->device.threads;
}

size_t cpu_attention_backward_scratch(struct backend *be,
                                      const struct attention_backward_args *args) {
    struct sizes sizes = sizes_of(be, args);
    int64_t sums = key_sums_count(be, &sizes) * key_sums_floats(&sizes);
    return (size_t)be->device.threads * buffers_bytes(&sizes) + (size_t)sums * sizeof(float);
}

void cpu_attention_backward(struct backend *be, const struct attention_backward_args *args) {
    struct sizes sizes = sizes_of(be, args);
    int64_t heads = sizes.batch * sizes.row.kv_heads;
    float *all_sums = backend_workspace(be, cpu_attention_backward_scratch(be, args));
    char *all_buffers = (char *)(all_sums + key_sums_count(be, &sizes) * key_sums_floats(&sizes));
    size_t bytes = buffers_bytes(&sizes);
#pragma omp parallel num_threads(be->device.threads)
    {
        struct arena arena = {all_buffers + (size_t)omp_get_thread_num() * bytes, 0, bytes};
        struct buffers buffers = buffers_take(&arena, &sizes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < heads * sizes.parts; task++) {
            struct key_head head = key_head(&sizes, args, task / sizes.parts);
            int64_t index = sizes.parts > 1 ? task : omp_get_thread_num();
            struct key_sums sums = key_sums_at(&sizes, all_sums, index);
            part_run(&sizes, &buffers, &sums, args, task / sizes.parts, task % sizes.parts);
            for (int64_t block = 0; sizes.parts == 1 && block < sizes.blocks; block++)
                key_block_store(&sizes, sums.dk, &head, block);
        }
        /* Heads in several parts need all parts first; the loop above ends with a barrier. */
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < (sizes.parts > 1 ? heads * sizes.blocks : 0); task++) {
            int64_t index = task / sizes.blocks;
            struct key_head head = key_head(&sizes, args, index);
            float *sums = key_sums_at(&sizes, all_sums, index * sizes.parts).dk;
            key_block_store(&sizes, sums, &head, task % sizes.blocks);
        }
    }
    if (args->column_sums) cpu_sum_columns(args->column_sums, args->dqkv);
    if (args->track_amax) cpu_find_amax(args->dqkv, args->track_amax, false);
}
