#include "kernels/comm/mpi_module.h"

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 1 };

/* Shortens "Open MPI v4.1.4, package: ..." and "MPICH Version: 4.0.2\n...": the text before the
 * first comma or line break, without the words between name and number. */
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

struct message {
    MPI_Request request;
    size_t expected; /* bytes of a message to receive; SIZE_MAX for one that is sent */
};

static struct message *new_message(size_t expected) {
    struct message *message = malloc(sizeof *message);
    if (!message) {
        fputs("train: out of memory for a message of MPI\n  free memory and try again\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    message->expected = expected;
    return message;
}

static void *send_message(const void *data, size_t bytes, int to) {
    struct message *message = new_message(SIZE_MAX);
    MPI_Isend(data, (int)bytes, MPI_BYTE, to, TAG, MPI_COMM_WORLD, &message->request);
    return message;
}

static void *receive_message(void *data, size_t bytes, int from) {
    struct message *message = new_message(bytes);
    MPI_Irecv(data, (int)bytes, MPI_BYTE, from, TAG, MPI_COMM_WORLD, &message->request);
    return message;
}

/* MPI itself reports a message that is longer than expected. */
static int is_done(void *posted) {
    struct message *message = posted;
    MPI_Status status;
    int done = 0, bytes = 0;
    MPI_Test(&message->request, &done, &status);
    if (!done) return 0;
    if (message->expected != SIZE_MAX) MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (message->expected != SIZE_MAX && (size_t)bytes != message->expected) {
        fputs("train: ranks are out of step: a message of another size arrived\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    free(message);
    return 1;
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
