#include "kernels/ranks/mpi_module.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 1 };

/* "Open MPI v4.1.4, package: ..." and "MPICH Version:      4.0.2\n..." in short: what stands before
 * the first comma or line break, without the words between name and number. */
static void name_library(char *name, size_t size) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = 0;
    const char *number = text + strcspn(text, "0123456789");
    char *word = strstr(text, " Version:");
    if (!word) word = strstr(text, " v");
    if (word && word < number) snprintf(name, size, "%.*s %.20s", (int)(word - text), text, number);
    else snprintf(name, size, "%.63s", text);
}

static int open_world(struct mpi_world *world, char *reason, size_t size) {
    int provided = 0, initialized = 0;
    MPI_Comm local;
    MPI_Initialized(&initialized);
    if (initialized || MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        snprintf(reason, size, "MPI_Init_thread failed");
        return -1;
    }
    if (provided < MPI_THREAD_FUNNELED) {
        snprintf(reason, size, "this MPI was built without support for threads");
        return -1;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &world->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world->size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &world->local_rank);
    MPI_Comm_size(local, &world->local_size);
    MPI_Comm_free(&local);
    name_library(world->library, sizeof world->library);
    return 0;
}

static MPI_Request *new_request(void) {
    MPI_Request *request = malloc(sizeof *request);
    if (!request) MPI_Abort(MPI_COMM_WORLD, 1);
    return request;
}

static void *send_message(const void *data, size_t bytes, int to) {
    MPI_Request *request = new_request();
    MPI_Isend(data, (int)bytes, MPI_BYTE, to, TAG, MPI_COMM_WORLD, request);
    return request;
}

static void *receive_message(void *data, size_t bytes, int from) {
    MPI_Request *request = new_request();
    MPI_Irecv(data, (int)bytes, MPI_BYTE, from, TAG, MPI_COMM_WORLD, request);
    return request;
}

static int is_done(void *posted) {
    MPI_Request *request = posted;
    int done = 0;
    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    if (done) free(request);
    return done;
}

static void abort_world(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void close_world(void) {
    MPI_Finalize();
}

extern const struct mpi_module mpi_module;
const struct mpi_module mpi_module = {
    MPI_MODULE_VERSION, open_world,  send_message, receive_message, is_done,
    abort_world,        close_world,
};
