/* What mpi_module.so offers: the few calls of MPI that are needed, without a type of MPI's.
 *
 * Open MPI and MPICH have different binary interfaces, so a program linked to one does not start
 * with the other, nor on a machine without. Only this module is compiled with mpicc and linked to
 * MPI; the program opens it (dlopen) when a launcher has started it. */
#pragma once

#include <stddef.h>

enum { MPI_MODULE_VERSION = 1 };

/* Symbol "mpi_module" of the library. All calls come from one thread. Errors of MPI end all ranks.
 */
struct mpi_module {
    int version;
    /* Returns 0, or -1 with a reason in text. */
    int (*open)(int *rank, int *size, int *local_rank, int *local_size, char *library,
                size_t size_of_library, char *reason, size_t size_of_reason);
    /* Post a message of at most 2^30 bytes and return what to ask for; those of a pair of ranks
     * arrive in order. */
    void *(*send)(const void *data, size_t bytes, int to);
    void *(*receive)(void *data, size_t bytes, int from);
    /* Whether a posted message is through; then it is freed and must not be asked for again. */
    int (*done)(void *request);
    void (*abort)(int status);
    void (*close)(void);
};
