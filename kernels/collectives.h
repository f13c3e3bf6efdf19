/* Gradients and weights between ranks: collective operations on the memory of a backend, beside its
 * own operations.
 *
 * A collective operation sees what operations called before it have left, and runs while those
 * called afterwards run; its data must not be touched until collectives_wait, after which
 * operations find the result. Nobody waits before. All ranks call the same functions in the same
 * order with the same counts. The same ranks give the same bits, run after run.
 *
 * A backend opened for one rank has collectives_alone, which do nothing. An error ends up in the
 * backend's `failure`, as those of operations do, or ends all ranks. */
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
};

struct collectives {
    const struct ranks *ranks;
    const struct collective_functions *functions;
    void *state;
    char description[64]; /* the library that moves the data, with its version */
};

extern const struct collectives collectives_alone;

/* This rank's part (ranks_part) of data, [count], becomes the sum of that of all ranks: in fp32,
 * rounded once to dtype where the host adds; as NCCL adds on a GPU. The other parts are
 * undefined afterwards. Returns a ticket for collectives_wait. */
static inline uint64_t collectives_reduce_scatter(const struct collectives *c, void *data,
                                                  enum dtype dtype, int64_t count) {
    return c->functions->reduce_scatter(c, data, dtype, count);
}

/* Each rank's part of data, [count], reaches all. */
static inline uint64_t collectives_all_gather(const struct collectives *c, void *data,
                                              size_t element_bytes, int64_t count) {
    return c->functions->all_gather(c, data, element_bytes, count);
}

/* Operations called afterwards find the results of that ticket, and of all before it. Ticket 0 is
 * always done. */
static inline void collectives_wait(const struct collectives *c, uint64_t ticket) {
    if (ticket) c->functions->wait(c, ticket);
}
