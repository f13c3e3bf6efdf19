/* Finding the launcher of this process, and starting other processes: from launchers (mpirun, srun)
 * to open ranks. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "kernels/ranks.h"

/* How many processes the launcher that started this one says there are; 1 if there was none. */
int ranks_launched(void);

/* Which of them this one is, as far as the launcher told; 0 if it did not. */
int ranks_launched_as(void);

/* Opens what the launcher started. Returns -1 with a message, which names the packages, where the
 * MPI module (train_mpi.so beside the program) or MPI is missing or does not serve. */
int ranks_open(struct ranks *ranks, struct error *error);

/* Runs `mpirun -n COUNT` of this program with the same arguments; argv ends with NULL. Ctrl-C and
 * SIGTERM ask the ranks to save a checkpoint and end; a second one kills them. Returns the exit
 * status of mpirun, or 128 + the signal; -1 with a message, which names the packages, where this
 * program has no MPI. */
int ranks_launch(int64_t count, char **argv, struct error *error);
