/* Division of the flat arrays among ranks. Buckets are ranges of elements that are sent together;
 * each rank updates one part of every bucket and has the moments of that part.
 *
 *     | wte | wpe | layer 0 | layer 1 | ... | vectors |      buckets
 *     |0 1 2|0 1 2| 0  1  2 | 0  1  2 |     | 0  1  2 |      the ranks' parts (ranks_part)
 *
 * A bucket lies in one group of master weights, one rule updates it, and its gradients are complete
 * at one point of the backward pass. With one rank a bucket is a whole group. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ranks.h"
#include "model/core/masters.h"
#include "model/core/update_rule.h"

struct bucket {
    int64_t first, count; /* range of elements in the flat arrays */
    int group;            /* index of its group of master weights */
    const struct update_rule *rule;
    int layer;      /* layer whose backward pass completes its gradients; n_layer: the head, whose
                     * backward pass runs first; -1: complete at the end of the pass */
    bool embedding; /* the bucket is wte, whose master weights the embedding reads */
    struct rank_part own;       /* the part that this rank updates; first: in the flat arrays */
    int64_t place[MOMENTS_MAX]; /* offset of `own` in the arrays of this rank's moments */
};

struct shards {
    struct bucket *buckets; /* stb_ds array, in order */
    int *order;             /* stb_ds array of bucket indices in the order of the forward pass */
    int head;               /* number of the head among layers: n_layer */
    int64_t moment_count[MOMENTS_MAX]; /* elements of this rank's moments */
    int64_t largest;                   /* elements of the largest bucket */
    bool divided;                      /* ranks update different elements */
};

/* Divides the parameters of a list. With `divide` each rank updates only its own parts, otherwise
 * all. */
void shards_open(struct shards *shards, const struct config *config, const struct parameter *list,
                 const struct masters *masters, const struct ranks *ranks, bool divide);

/* Returns the number of elements of all moments of all ranks together, each counted once. */
int64_t shards_moments(const struct shards *shards);
void shards_close(struct shards *shards);

/* Iterates over the parts of buckets that a rank sums (and updates, if the optimizer is sharded),
 * merged into contiguous runs of the flat arrays. Stores the run that begins with bucket *at, and
 * advances *at to the first bucket of the next run. Returns false at the end. */
bool shards_run(struct rank_part *run, ptrdiff_t *at, const struct shards *shards,
                const struct ranks *ranks, int rank);

/* Returns the part of elements first .. first + count in bucket i that a rank updates and has the
 * moments of; its count is 0 if there is none. */
struct rank_part shards_overlap(const struct shards *shards, ptrdiff_t i, const struct ranks *ranks,
                                int rank, int64_t first, int64_t count);
