/* Ranks over MPI: host communication, and collectives on backends whose memory is the host's.
 *
 * A separate thread makes all calls of MPI. It runs jobs in the order in which they were queued, so
 * that gradients are sent while other threads compute. While a message is incomplete it sleeps for
 * some microseconds instead of keeping a core busy.
 *
 * reduce_scatter sends every rank its part and adds the received parts in the order of ranks, in
 * fp32: the sum does not depend on library, network or timing. */
#pragma once

#include "data/util/error.h"
#include "kernels/collectives.h"
#include "kernels/comm/mpi_module.h"
#include "kernels/ranks.h"

/* Opens ranks on a module, which must last until ranks_close. staging_bytes: size of the receive
 * buffers, 0 for the default of 8 MiB. Returns -1 with a message. */
int mpi_open(struct ranks *ranks, const struct mpi_module *module, size_t staging_bytes,
             struct error *error);

/* Conversions and sums for reductions, from the CPU level in use. */
struct mpi_arithmetic {
    const float *(*widen)(float *buffer, const void *data, enum dtype dtype, size_t offset,
                          size_t count);
    void (*store)(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);
};

/* Returns collectives on host memory among ranks that mpi_open opened; arithmetic is copied.
 * Returns NULL if there is no memory. */
const struct collectives *mpi_collectives(const struct ranks *ranks,
                                          const struct mpi_arithmetic *arithmetic);
