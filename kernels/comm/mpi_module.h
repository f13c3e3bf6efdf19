/* Interface of train_mpi.so: the few calls of MPI that are needed, without MPI's types.
 *
 * Open MPI and MPICH have different binary interfaces, so a program linked to one does not start
 * with the other, nor on a machine without MPI. Only this module is compiled with mpicc and linked
 * to MPI; the program opens it (dlopen) if a launcher has started it. */
#pragma once

#include <stddef.h>

enum { MPI_MODULE_VERSION = 1, MPI_MESSAGE_MAX = 1 << 30 /* bytes */ };

struct mpi_world {
    int rank, size, local_rank, local_size;
    char library[64]; /* "Open MPI 4.1.4" */
};

/* Symbol "mpi_module" of the library. All calls come from one thread. An MPI error ends all ranks,
 * by MPI's error handler. */
struct mpi_module {
    int version;
    /* Returns 0, or -1 with a reason of at most `size` bytes. */
    int (*open)(struct mpi_world *world, char *reason, size_t size);
    /* Post a message of at most MPI_MESSAGE_MAX bytes and return a request for `done`. Messages
     * from one rank to another arrive in the order in which both post them. */
    void *(*send)(const void *data, size_t bytes, int to);
    void *(*receive)(void *data, size_t bytes, int from);
    /* Returns true once a posted message is complete; the request is invalid afterwards. */
    int (*done)(void *request);
    void (*abort)(int status);
    void (*close)(void);
};
