#include "model/core/shards.h"

#include <assert.h>

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

static bool same_bucket(const struct bucket *bucket, const struct bucket *next) {
    return bucket->group == next->group && bucket->rule == next->rule &&
           bucket->layer == next->layer && bucket->embedding == next->embedding;
}

static void list_buckets(struct shards *shards, const struct config *config,
                         const struct parameter *list, const struct masters *masters,
                         bool several_ranks) {
    for (ptrdiff_t i = 0; i < parameter_trained_count(list); i++) {
        const struct parameter *p = &list[i];
        struct bucket next = {p->offset,
                              p->elements,
                              group_of(masters, p->offset),
                              update_rule_of(config, p),
                              .layer = several_ranks ? layer_of(list, p, shards->head) : -1,
                              .embedding = several_ranks && p == parameter_wte(list)};
        struct bucket *last = arrlen(shards->buckets) ? &arrlast(shards->buckets) : NULL;
        if (last && same_bucket(last, &next)) last->count += next.count;
        else arrput(shards->buckets, next);
    }
}

static struct rank_part part_of(const struct bucket *bucket, const struct ranks *ranks, int rank) {
    struct rank_part part = ranks_part(bucket->count, ranks->size, rank);
    part.first += bucket->first;
    return part;
}

static struct rank_part owned(const struct shards *shards, const struct bucket *bucket,
                              const struct ranks *ranks, int rank) {
    if (shards->divided) return part_of(bucket, ranks, rank);
    return (struct rank_part){bucket->first, bucket->count};
}

bool shards_run(struct rank_part *run, ptrdiff_t *at, const struct shards *shards,
                const struct ranks *ranks, int rank) {
    *run = (struct rank_part){0, 0};
    for (; *at < arrlen(shards->buckets); ++*at) {
        struct rank_part part = part_of(&shards->buckets[*at], ranks, rank);
        if (part.count == 0) continue;
        if (run->count == 0) run->first = part.first;
        else if (part.first != run->first + run->count) break;
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
    list_buckets(shards, config, list, masters, ranks->size > 1);
    order_buckets(shards);
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++) {
        struct bucket *bucket = &shards->buckets[i];
        bucket->own = owned(shards, bucket, ranks, ranks->rank);
        for (int moment = 0; moment < bucket->rule->moments; moment++) {
            bucket->place[moment] = shards->moment_count[moment];
            assert(bucket->place[moment] % RANKS_ALIGNMENT == 0);
            shards->moment_count[moment] += bucket->own.count;
        }
        if (bucket->count > shards->largest) shards->largest = bucket->count;
    }
}

int64_t shards_moments(const struct shards *shards) {
    int64_t count = 0;
    for (ptrdiff_t i = 0; i < arrlen(shards->buckets); i++)
        count += shards->buckets[i].count * shards->buckets[i].rule->moments;
    return count;
}

void shards_close(struct shards *shards) {
    arrfree(shards->order);
    arrfree(shards->buckets);
    *shards = (struct shards){0};
}
