/* Detects the launcher of this process (mpirun, srun), opens the ranks that it started, and starts
 * ranks itself. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "kernels/ranks.h"

/* Returns the number of processes that the launcher started; 1 without a launcher. */
int ranks_launched(void);

/* Returns this process's index among them as set by the launcher, or 0. */
int ranks_launched_rank(void);

/* Opens the ranks that the launcher started. Returns -1 with a message, which names the packages,
 * if the MPI module (train_mpi.so beside the program) or MPI is missing or unusable. */
int ranks_open(struct ranks *ranks, struct error *error);

/* Runs `mpirun -n COUNT` of this program with the same arguments; argv ends with NULL. On Ctrl-C
 * and SIGTERM the ranks save a checkpoint and end; a second signal kills them. Returns the exit
 * status of mpirun, or 128 + the signal; -1 with a message, which names the packages, if this
 * program has no MPI. */
int ranks_launch(int64_t count, char **argv, struct error *error);
