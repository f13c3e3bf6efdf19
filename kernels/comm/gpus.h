/* Assignment of GPUs to ranks. */
#pragma once

#include "kernels/ranks.h"

/* Sets *gpu to this process's index among the visible GPUs: its local rank, modulo their number.
 * This covers ranks that see all GPUs of the machine, and launchers that show each rank its own
 * (CUDA_VISIBLE_DEVICES, srun --gpus-per-task). The GPUs of all ranks are compared: if two ranks
 * would share one, returns -1 on all ranks, with a message that names both. A rank without a GPU
 * gets 0; opening it will fail. Each rank is bound to the cores beside its GPU (binding.h). All
 * ranks must call it. */
int gpus_choose(const struct ranks *ranks, int *gpu, struct error *error);
