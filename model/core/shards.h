/* How the flat arrays are divided among ranks: buckets, whose elements travel together, and of each
 * bucket the part that this rank updates, whose moments it has.
 *
 *     | wte | wpe | layer 0 | layer 1 | ... | vectors |      buckets
 *     |0 1 2|0 1 2| 0  1  2 | 0  1  2 |     | 0  1  2 |      the ranks' parts (ranks_part)
 *
 * A bucket lies in one group of masters, and its gradients are complete at one moment of the
 * backward pass. Where nothing travels, a bucket is a whole group. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ranks.h"
#include "model/core/masters.h"

struct bucket {
    int64_t first, count; /* elements, in the order of the flat arrays */
    int group;            /* of masters, that it lies in */
    int layer;            /* whose backward pass completes its gradients; n_layer: the head's, which
                           * comes before all; -1: the end of the whole pass */
    bool embedding;       /* it is wte, whose masters the embedding reads */
    struct rank_part own; /* the part that this rank updates; first: in the flat arrays */
    int64_t place;        /* where that part begins in an array of own elements only */
};

struct shards {
    struct bucket *buckets; /* stb_ds array, in order */
    int *order;             /* stb_ds array: all of them, those of no layer first, which the forward
                             * pass reads first */
    int head;               /* what stands for the head among layers: n_layer */
    int64_t own_count;      /* elements that this rank updates */
    int64_t largest;        /* elements of the largest bucket */
    bool divided;           /* ranks update different elements */
};

/* Divides the parameters of a list. With `divide` each rank updates its part only; else all of
 * them. */
void shards_open(struct shards *shards, const struct parameter *list, const struct masters *masters,
                 const struct ranks *ranks, bool divide);
void shards_close(struct shards *shards);

/* The parts of buckets that a rank sums, and updates if the optimizer is divided, as runs of
 * neighbors in the flat arrays: the run that begins with bucket *at, after which *at is
 * the first bucket of the next. Returns false when there is none. */
bool shards_run(struct rank_part *run, ptrdiff_t *at, const struct shards *shards,
                const struct ranks *ranks, int rank);

/* Returns the part of elements first .. first + count in bucket i that a rank updates and has the
 * moments of; its count is 0 if there is none. */
struct rank_part shards_overlap(const struct shards *shards, ptrdiff_t i, const struct ranks *ranks,
                                int rank, int64_t first, int64_t count);
