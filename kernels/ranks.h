/* Ranks: the processes that train one model together, and their communication.
 *
 * A launcher (mpirun, srun) starts them; launch.c detects it and opens the MPI module. A process
 * that was started alone is rank 0 of 1, needs no library, and all of this does nothing.
 *
 * This header is for host communication: small or rare, and all ranks wait for each other.
 * collectives.h is for gradients and weights, concurrent with the operations of a backend. All
 * ranks call the same functions in the same order with the same sizes. No function returns an
 * error: if the library finds one, all ranks end; if a rank has died, its launcher ends the others
 * (srun with --kill-on-bad-exit=1). */
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
    int local_rank, local_size; /* among the ranks on this machine */
    char description[64];       /* library and its version; "": alone */
    const struct rank_functions *functions;
    void *state; /* private to the library */
    int errors;  /* descriptor of the standard error that the program began with */
};

/* Rank 0 of 1. */
extern const struct ranks ranks_alone;

/* Closes the ranks, after all ranks have called it. */
void ranks_close(struct ranks *ranks);

/* Copies rank 0's bytes to all ranks. */
static inline void ranks_broadcast(const struct ranks *ranks, void *data, size_t bytes) {
    if (ranks->size > 1) ranks->functions->broadcast(ranks, data, bytes);
}

/* all: [size][bytes], in the order of ranks, on each rank. */
void ranks_gather(const struct ranks *ranks, void *all, const void *own, size_t bytes);

/* Exchanges messages between pairs. Messages from one rank to another arrive in the order in which
 * both list them, and have the same sizes on both sides. Each list has at most RANKS_MAX; a rank
 * does not send to itself. */
static inline void ranks_swap(const struct ranks *ranks, const struct rank_message *out, int outs,
                              const struct rank_message *in, int ins) {
    if (ranks->size > 1) ranks->functions->swap(ranks, out, outs, in, ins);
}

/* Returns once all ranks have called it. */
void ranks_barrier(const struct ranks *ranks);

/* Checks that all ranks were successful: status is 0 or this rank's failure with its message in
 * error. Returns 0, or on all ranks -1 with the message of the lowest rank that failed, and its
 * number. */
int ranks_agree(const struct ranks *ranks, int status, struct error *error);

/* Returns the largest of all ranks' values. */
int64_t ranks_max(const struct ranks *ranks, int64_t value);

/* Sets each of values, [count] with count at most 8, to the largest of all ranks. */
void ranks_max_each(const struct ranks *ranks, int64_t *values, int count);

/* Ends all ranks with this exit status, at once. Does not return if there are several. */
static inline void ranks_abort(const struct ranks *ranks, int status) {
    if (ranks->size > 1) ranks->functions->abort(ranks, status);
}

/* Contiguous range of an array's elements. */
struct rank_part {
    int64_t first, count;
};

/* Returns the part of `count` elements that belongs to a rank: equal parts in multiples of
 * RANKS_ALIGNMENT; the last rank has the remainder. */
static inline struct rank_part ranks_part(int64_t count, int size, int rank) {
    int64_t each = count / RANKS_ALIGNMENT / size * RANKS_ALIGNMENT;
    return (struct rank_part){rank * each, rank + 1 < size ? each : count - rank * each};
}
