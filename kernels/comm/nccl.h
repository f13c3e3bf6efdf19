/* NCCL: gradients and weights between GPUs, for collectives.h.
 *
 * The library is found at run time (libnccl.so.2) and meets over the ranks' host traffic. All of
 * its work is on one stream of its own: an operation waits there for what the compute stream had
 * been given before it, and collectives_wait makes the compute stream wait for the operation.
 * Parts are those of ranks_part: equal ones by ncclReduceScatter and ncclAllGather in place, the
 * last rank's rest by ncclReduce and ncclBroadcast in the same group. Sums are made in the dtype of
 * the data: 16-bit sums are rounded once for each rank that adds.
 *
 * The same ranks on the same machines give the same bits only if the order of sums is fixed, which
 * NCCL otherwise chooses by what it measures and knows: NCCL_ALGO=Ring is set unless the
 * environment has an NCCL_ALGO, which is then the user's choice.
 *
 * After an error nothing but ncclCommAbort is called, and the message is the backend's failure; the
 * other ranks do not hear of it from NCCL, but from whoever ends them (ranks_abort). An error while
 * the ranks connect ends all of them at once, since the others may wait in NCCL for good.
 *
 * Tested with a stand-in on emulated GPUs (test/cuda_emulator/fake_nccl.cpp) and compiled against
 * the real nccl.h; not yet measured on a GPU, nor run with the real library. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "kernels/ranks.h"

/* Fills be->collectives of an open CUDA backend, for more than one rank; backend_close closes them.
 * Until then `be` must stay where it is, since failures are noted there.
 * All ranks must call it. Returns -1 with a message on all ranks if one of them cannot: where there
 * is no libnccl, or the program was built without nccl.h. */
int nccl_collectives_open(struct backend *be, const struct ranks *ranks, struct error *error);
