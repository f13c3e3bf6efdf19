/* Division of the flat arrays among ranks. Buckets are ranges of elements that are sent together;
 * each rank updates one part of every bucket and has the moments of that part.
 *
 *     | wte | wpe | layer 0 | layer 1 | ... | vectors |      buckets
 *     |0 1 2|0 1 2| 0  1  2 | 0  1  2 |     | 0  1  2 |      the ranks' parts (ranks_part)
 *
 * A bucket lies in one group of master weights, one rule updates it, and its gradients are complete
 * at one point of the backward pass. With several ranks it has at most 32 M elements, unless it is
 * a single parameter. With one rank a bucket is a whole group. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/moment_code.h"
#include "kernels/ranks.h"
#include "model/core/masters.h"
#include "model/core/update_rule.h"

struct bucket {
    int64_t first, count; /* range of elements in the flat arrays */
    int group;            /* index of its group of master weights */
    const struct update_rule *rule;
    int layer;      /* layer whose backward pass completes its gradients; n_layer: the head, whose
                     * backward pass runs first; -1: complete at the end of the pass */
    bool in_layers; /* its elements are matrices of layers */
    bool embedding; /* the bucket is wte, whose master weights the embedding reads */
    bool coded;     /* its moments are in 8 bits, in blocks that begin with the bucket */
    int64_t even;   /* elements from the first that ranks divide evenly, if coded in whole blocks;
                     * the last rank has the rest */
    struct rank_part own;       /* the part that this rank updates; first: in the flat arrays */
    int64_t place[MOMENTS_MAX]; /* offset of `own` in the arrays of this rank's moments, of those
                                 * in 8 bits if coded */
};

struct shards {
    struct bucket *buckets; /* stb_ds array, in order */
    int *order;             /* stb_ds array of bucket indices in the order of the forward pass */
    int head;               /* number of the head among layers: n_layer */
    int64_t moment_count[MOMENTS_MAX]; /* elements of this rank's moments in fp32 or bf16 */
    int64_t coded_count[MOMENTS_MAX];  /* elements of those in 8 bits */
    int64_t largest;                   /* elements of the largest bucket */
    bool divided;                      /* ranks update different elements */
};

/* Divides the parameters of a list. With `divide` each rank updates only its own parts, otherwise
 * all. */
void shards_open(struct shards *shards, const struct config *config, const struct parameter *list,
                 const struct masters *masters, const struct ranks *ranks, bool divide);

/* Returns the bytes of all moments of all ranks together, each counted once, where those that are
 * not in 8 bits have this dtype. */
size_t shards_moment_bytes(const struct shards *shards, enum dtype dtype);

/* Returns the bytes of `count` elements in 8 bits, with their scales. */
static inline size_t shards_coded_bytes(int64_t count) {
    return (size_t)count + (size_t)(count / MOMENT_BLOCK) * sizeof(float);
}
void shards_close(struct shards *shards);

/* Returns the number of elements that one collective operation sends of a bucket, from element
 * `done` on: those that are divided evenly, and then, for the last rank, fewer than are divided. */
static inline int64_t shards_sent(const struct bucket *bucket, int64_t done, int ranks) {
    const int64_t left = bucket->count - done, most = (int64_t)(ranks - 1) * RANKS_ALIGNMENT;
    return done < bucket->even ? bucket->even : left < most ? left : most;
}

/* Iterates over the parts of buckets that a rank sums (and updates, if the optimizer is sharded),
 * merged into contiguous runs of the flat arrays, each of matrices of layers or of none. Stores the
 * run that begins with bucket *at, and advances *at to the first bucket of the next run. Returns
 * false at the end. */
bool shards_run(struct rank_part *run, ptrdiff_t *at, const struct shards *shards,
                const struct ranks *ranks, int rank);

/* Returns the part of elements first .. first + count in bucket i that a rank updates and has the
 * moments of; its count is 0 if there is none. */
struct rank_part shards_overlap(const struct shards *shards, ptrdiff_t i, const struct ranks *ranks,
                                int rank, int64_t first, int64_t count);
