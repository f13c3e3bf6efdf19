/* Ranks: the processes that train one model together, and what they tell each other.
 *
 * A launcher (mpirun, srun) starts them; launch.c finds that out and opens the MPI module. A
 * process that was started alone is rank 0 of 1, needs no library, and all of this does nothing.
 *
 * Here is the traffic of the host: small or rare, and everybody waits for everybody. Traffic of
 * gradients and weights, beside the operations of a backend, is in collectives.h. All ranks call
 * the same functions in the same order with the same sizes. None of them fails: where the library
 * finds an error all ranks end; where a rank has died their launcher ends the others (srun with
 * --kill-on-bad-exit=1). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

enum { RANKS_MAX = 4096, RANKS_ALIGNMENT = 128 /* elements, see ranks_part */ };

/* Bytes from or to another rank. */
struct rank_message {
    int rank;
    void *data;
    size_t bytes;
};

struct ranks;
struct rank_functions {
    void (*broadcast)(const struct ranks *ranks, void *data, size_t bytes);
    void (*gather)(const struct ranks *ranks, void *all, const void *own, size_t bytes);
    void (*swap)(const struct ranks *ranks, const struct rank_message *out, int outs,
                 const struct rank_message *in, int ins);
    void (*abort)(const struct ranks *ranks, int status);
    void (*close)(struct ranks *ranks);
};

struct ranks {
    int rank, size;             /* 0 <= rank < size */
    int local_rank, local_size; /* among those on this machine */
    char description[64];       /* the library and its version; "": alone */
    const struct rank_functions *functions;
    void *state; /* the library's own */
};

/* Rank 0 of 1. */
extern const struct ranks ranks_alone;

/* Waits for all ranks to close. */
void ranks_close(struct ranks *ranks);

/* Rank 0's bytes reach all. */
static inline void ranks_broadcast(const struct ranks *ranks, void *data, size_t bytes) {
    if (ranks->size > 1) ranks->functions->broadcast(ranks, data, bytes);
}

/* all: [size][bytes], in the order of ranks, on each rank. */
void ranks_gather(const struct ranks *ranks, void *all, const void *own, size_t bytes);

/* Messages between pairs: those from one rank to another arrive in the order in which both list
 * them, and have the same sizes on both sides. Each list has at most RANKS_MAX; none goes to
 * oneself. */
static inline void ranks_swap(const struct ranks *ranks, const struct rank_message *out, int outs,
                              const struct rank_message *in, int ins) {
    if (ranks->size > 1) ranks->functions->swap(ranks, out, outs, in, ins);
}

/* Returns once all ranks have called it. */
void ranks_barrier(const struct ranks *ranks);

/* Finds out if all ranks were successful: status is 0 or this rank's failure with its message in
 * error. Returns 0, or on all ranks -1 with the message of the lowest rank that failed, which it
 * names. */
int ranks_agree(const struct ranks *ranks, int status, struct error *error);

/* The largest of all ranks' values. */
int64_t ranks_max(const struct ranks *ranks, int64_t value);

/* Each of values, [count] with count at most 8, becomes the largest of all ranks. */
void ranks_max_each(const struct ranks *ranks, int64_t *values, int count);

/* Ends all ranks with this exit status, at once. Does not return where there are several. */
static inline void ranks_abort(const struct ranks *ranks, int status) {
    if (ranks->size > 1) ranks->functions->abort(ranks, status);
}

/* Elements of an array. */
struct rank_part {
    int64_t first, count;
};

/* Returns the part of `count` elements that belongs to a rank: equal parts in multiples of
 * RANKS_ALIGNMENT; the last rank has the remainder. */
static inline struct rank_part ranks_part(int64_t count, int size, int rank) {
    int64_t each = count / RANKS_ALIGNMENT / size * RANKS_ALIGNMENT;
    return (struct rank_part){rank * each, rank + 1 < size ? each : count - rank * each};
}
