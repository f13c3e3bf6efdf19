/* Ranks over MPI: all traffic of the host, and collectives on backends whose memory is the host's.
 *
 * A thread of its own makes all calls of MPI, one job after the other in the order in which they
 * were given to it, so that gradients travel while others compute. Where a message is not through
 * yet it sleeps for some microseconds instead of keeping a core busy.
 *
 * reduce_scatter sends every rank its part and adds what arrives in the order of ranks, in fp32:
 * the sum is the same whatever library, network or timing. */
#pragma once

#include "data/util/error.h"
#include "kernels/collectives.h"
#include "kernels/comm/mpi_module.h"
#include "kernels/ranks.h"

/* Opens ranks on a module, which must last until ranks_close. staging_bytes: of memory for what
 * arrives, 0 for the default of 8 MiB. Returns -1 with a message. */
int mpi_open(struct ranks *ranks, const struct mpi_module *module, size_t staging_bytes,
             struct error *error);

/* Conversions and sums for reductions, from the CPU level in use. */
struct mpi_arithmetic {
    const float *(*widen)(float *buffer, const void *data, enum dtype dtype, size_t offset,
                          size_t count);
    void (*store)(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);
};

/* Collectives on host memory among ranks that mpi_open opened; arithmetic is copied. NULL if there
 * is no memory. */
const struct collectives *mpi_collectives(const struct ranks *ranks,
                                          const struct mpi_arithmetic *arithmetic);
