#include "model/core/shards.h"

#include <stb/stb_ds.h>

static int group_of(const struct masters *masters, int64_t element) {
    int group = 0;
    while (element >= masters->groups[group].first + masters->groups[group].count) group++;
    return group;
}

/* Returns the layer whose backward pass completes a parameter's gradients. wte gets gradients twice
 * if it is also the head, so it is complete at the end. */
static int layer_of(const struct parameter *list, const struct parameter *p, int head) {
    if (p->extent.columns == 0) return -1;
    return p == parameter_head(list) && p != parameter_wte(list) ? head : p->layer;
}

static int count_layers(const struct parameter *list) {
    int last = -1;
    for (ptrdiff_t i = 0; i < arrlen(list); i++)
        if (list[i].layer > last) last = list[i].layer;
    return last + 1;
}

/* Elements of a bucket of several parameters: 128 MB in fp32, 64 MB in 16 bits. Transfers of this
 * size are at full speed, and that of one bucket runs while the next one is updated. */
static const int64_t BUCKET_ELEMENTS = (int64_t)32 << 20;

static bool same_bucket(const struct bucket *bucket, const struct bucket *next) {
    return bucket->group == next->group && bucket->rule == next->rule &&
           bucket->layer == next->layer && bucket->in_layers == next->in_layers &&
           bucket->embedding == next->embedding && bucket->coded == next->coded;
}

/* Returns how many of `count` elements `ranks` ranks divide evenly, in whole blocks if coded. */
static int64_t even_count(int64_t count, bool coded, int ranks) {
    const int64_t unit = (int64_t)ranks * MOMENT_BLOCK;
    return coded ? count / unit * unit : count;
}

static void list_buckets(struct shards *shards, const struct config *config,
                         const struct parameter *list, const struct masters *masters, int ranks) {
    const bool several_ranks = ranks > 1;
    for (ptrdiff_t i = 0; i < parameter_trained_count(list); i++) {
        const struct parameter *p = &list[i];
        struct bucket next = {p->offset,
                              p->elements,
                              group_of(masters, p->offset),
                              update_rule_of(config, p),
                              .layer = several_ranks ? layer_of(list, p, shards->head) : -1,
                              .in_layers = parameter_in_layer(p),
                              .embedding = several_ranks && p == parameter_wte(list),
                              .coded = update_rule_in_8bit(config, p)};
        struct bucket *last = arrlen(shards->buckets) ? &arrlast(shards->buckets) : NULL;
        const bool fits = !several_ranks || (last && last->count + next.count <= BUCKET_ELEMENTS);
        if (last && fits && same_bucket(last, &next)) last->count += next.count;
        else arrput(shards->buckets, next);
    }
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++) {
        struct bucket *bucket = &shards->buckets[i];
        bucket->even = even_count(bucket->count, bucket->coded, ranks);
    }
}

static struct rank_part part_of(const struct bucket *bucket, const struct ranks *ranks, int rank) {
    struct rank_part part = ranks_part(bucket->even, ranks->size, rank);
    part.first += bucket->first;
    if (rank + 1 == ranks->size) part.count += bucket->count - bucket->even;
    return part;
}

static struct rank_part owned(const struct shards *shards, const struct bucket *bucket,
                              const struct ranks *ranks, int rank) {
    if (shards->divided) return part_of(bucket, ranks, rank);
    return (struct rank_part){bucket->first, bucket->count};
}

bool shards_run(struct rank_part *run, ptrdiff_t *at, const struct shards *shards,
                const struct ranks *ranks, int rank) {
    const struct bucket *first = NULL;
    *run = (struct rank_part){0, 0};
    for (; *at < arrlen(shards->buckets); ++*at) {
        const struct bucket *bucket = &shards->buckets[*at];
        struct rank_part part = part_of(bucket, ranks, rank);
        if (part.count == 0) continue;
        if (!first) first = bucket, run->first = part.first;
        else if (part.first != run->first + run->count || bucket->in_layers != first->in_layers)
            break;
        run->count += part.count;
    }
    return run->count > 0;
}

struct rank_part shards_overlap(const struct shards *shards, ptrdiff_t i, const struct ranks *ranks,
                                int rank, int64_t first, int64_t count) {
    struct rank_part part = owned(shards, &shards->buckets[i], ranks, rank);
    int64_t end = first + count, part_end = part.first + part.count;
    if (part.first < first) part.first = first;
    if (part_end > end) part_end = end;
    part.count = part_end > part.first ? part_end - part.first : 0;
    return part;
}

/* Buckets of no layer come first: all layers read vectors, and the first operation reads wte. */
static void order_buckets(struct shards *shards) {
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < (int)arrlen(shards->buckets); i++)
            if ((shards->buckets[i].layer >= 0) == pass) arrput(shards->order, i);
}

void shards_open(struct shards *shards, const struct config *config, const struct parameter *list,
                 const struct masters *masters, const struct ranks *ranks, bool divide) {
    *shards = (struct shards){.divided = divide && ranks->size > 1, .head = count_layers(list)};
    list_buckets(shards, config, list, masters, ranks->size);
    order_buckets(shards);
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++) {
        struct bucket *bucket = &shards->buckets[i];
        bucket->own = owned(shards, bucket, ranks, ranks->rank);
        for (int moment = 0; moment < bucket->rule->moments; moment++) {
            int64_t *count = &(bucket->coded ? shards->coded_count : shards->moment_count)[moment];
            bucket->place[moment] = *count;
            *count += round_up(bucket->own.count, RANKS_ALIGNMENT);
        }
        if (bucket->count > shards->largest) shards->largest = bucket->count;
    }
}

size_t shards_moment_bytes(const struct shards *shards, enum dtype dtype) {
    size_t bytes = 0;
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++) {
        const struct bucket *bucket = &shards->buckets[i];
        bytes += (size_t)bucket->rule->moments * (bucket->coded ? shards_coded_bytes(bucket->count)
                                                                : dtype_size(dtype, bucket->count));
    }
    return bytes;
}

void shards_close(struct shards *shards) {
    arrfree(shards->order);
    arrfree(shards->buckets);
    *shards = (struct shards){0};
}
