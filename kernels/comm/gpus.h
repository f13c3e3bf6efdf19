/* Which GPU each rank takes. */
#pragma once

#include "kernels/ranks.h"

/* The number of this process's GPU among those that it sees: that of its local rank, counted round.
 * So it serves where every rank sees all GPUs of the machine, and where a launcher shows each its
 * own (CUDA_VISIBLE_DEVICES, srun --gpus-per-task). The GPUs of all ranks are compared: returns -1
 * on all ranks, with a message that names two, where they would share one. A rank without a GPU
 * gets 0 here; opening it will fail. All ranks must call it. */
int gpus_choose(const struct ranks *ranks, int *gpu, struct error *error);
