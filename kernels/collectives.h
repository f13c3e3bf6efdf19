/* Collective operations for gradients and weights of several ranks, on the memory of a backend,
 * concurrent with its own operations.
 *
 * A collective operation sees the results of operations called before it, and runs concurrently
 * with those called afterwards. Its data must not be touched until collectives_wait, after which
 * operations see the result; no other call waits. All ranks call the same functions in the same
 * order with the same counts. The same ranks give the same bits, run after run.
 *
 * A backend opened for one rank has collectives_alone, which do nothing. An error is recorded in
 * the backend's `failure`, like those of operations, or ends all ranks. */
#pragma once

#include "data/util/error.h"
#include "kernels/dtype.h"
#include "kernels/ranks.h"

struct collectives;
struct collective_functions {
    uint64_t (*reduce_scatter)(const struct collectives *c, void *data, enum dtype dtype,
                               int64_t count);
    uint64_t (*all_gather)(const struct collectives *c, void *data, size_t element_bytes,
                           int64_t count);
    void (*wait)(const struct collectives *c, uint64_t ticket);
    void (*close)(const struct collectives *c);
    bool (*failed)(const struct collectives *c); /* NULL: a failure ends all ranks by itself */
};

struct collectives {
    const struct ranks *ranks;
    const struct collective_functions *functions;
    void *state;
    char description[64]; /* library that transfers the data, with its version */
};

extern const struct collectives collectives_alone;

/* Number of multiprocessors of a GPU that transfers may occupy beside the operations, as many as
 * their channels: 8 on one machine, 16 between several. */
static inline int collectives_multiprocessors(const struct ranks *ranks) {
    return ranks->size == 1 ? 0 : ranks->size == ranks->local_size ? 8 : 16;
}

/* This rank's part (ranks_part) of data, [count], becomes the sum over all ranks. The host adds in
 * fp32 and rounds once to dtype; on a GPU NCCL adds. The other parts are undefined afterwards.
 * Returns a ticket for collectives_wait. */
static inline uint64_t collectives_reduce_scatter(const struct collectives *c, void *data,
                                                  enum dtype dtype, int64_t count) {
    return c->functions->reduce_scatter(c, data, dtype, count);
}

/* Copies each rank's part of data, [count], to all ranks. */
static inline uint64_t collectives_all_gather(const struct collectives *c, void *data,
                                              size_t element_bytes, int64_t count) {
    return c->functions->all_gather(c, data, element_bytes, count);
}

/* Operations called afterwards see the results of that ticket, and of all earlier ones. Ticket 0 is
 * always complete. */
static inline void collectives_wait(const struct collectives *c, uint64_t ticket) {
    if (ticket) c->functions->wait(c, ticket);
}

/* Returns true if an operation that was started will never complete, since another rank or the
 * network has failed; the message is in the backend's `failure` then. A device that waits for
 * results of other ranks polls it. */
static inline bool collectives_failed(const struct collectives *c) {
    return c->functions->failed && c->functions->failed(c);
}
