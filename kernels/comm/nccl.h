/* NCCL: gradients and weights between GPUs, for collectives.h.
 *
 * The library is loaded at run time (libnccl.so.2), and the ranks exchange its id over host
 * communication. All of its operations are on one stream of its own: an operation waits there for
 * the work that the compute stream was given before it, and collectives_wait makes the compute
 * stream wait for the operation. Parts are those of ranks_part: equal ones by ncclReduceScatter and
 * ncclAllGather in place, the last rank's remainder by ncclReduce and ncclBroadcast in the same
 * group. Sums are computed in the dtype of the data: 16-bit sums are rounded once for each rank
 * that adds.
 *
 * The same ranks on the same machines give the same bits only if the order of sums is fixed. NCCL
 * otherwise chooses it from measurements and the topology, so NCCL_ALGO=Ring is set unless the
 * environment has an NCCL_ALGO, which is then the user's choice.
 *
 * NCCL occupies at most 8 multiprocessors on one machine and 16 between several (maxCTAs, since
 * NCCL 2.17; NCCL_MAX_CTAS in the environment is the user's choice), and matmuls are chosen for the
 * rest.
 *
 * The ranks connect when they open NCCL, so that the memory of the connections is taken before the
 * rest is planned: NCCL_RUNTIME_CONNECT=0, unless the environment says otherwise.
 *
 * While the device waits for results, it polls NCCL for errors (collectives_failed): the operation
 * of a rank whose neighbour or network has failed never ends. After an error only ncclCommAbort is
 * called, and the message is the backend's failure. NCCL does not report it to the other ranks;
 * ranks_abort has to end them. A thread ends all ranks, with a message, once an operation has
 * waited for other ranks for MANTISSA_NCCL_TIMEOUT seconds, wherever the host is. An error while
 * the ranks connect ends all of them at once, since the others may wait in NCCL forever.
 *
 * Tested with a stub on emulated GPUs (test/cuda_emulator/fake_nccl.cpp) and compiled against the
 * real nccl.h; not yet measured on a GPU, nor run with the real library. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "kernels/ranks.h"

/* Fills be->collectives of an open CUDA backend, for more than one rank; backend_close closes them.
 * Until then `be` must not move, since failures are recorded there. All ranks must call it. Returns
 * -1 with a message on all ranks if one of them fails: if there is no libnccl, or the program was
 * built without nccl.h. */
int nccl_collectives_open(struct backend *be, const struct ranks *ranks, struct error *error);
