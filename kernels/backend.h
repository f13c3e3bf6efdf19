/* A backend: a device, its memory, and its filled table of operations. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

enum { BACKEND_ERROR_MAX = 1024 };

struct backend {
    /* The table in force. Normally `run`; `plan` walks a step without touching data, so that each
     * operation can announce its workspace and prepare what it wants prepared before step 0. */
    const struct operations *op;
    const struct operations *run, *plan;

    const char *name; /* "cpu" */
    char description[256];
    int threads;
    bool native_bf16; /* bf16 products at more than fp32 speed */
    bool native_fp16;

    void *workspace;        /* one block shared by all operations, valid within one call */
    size_t workspace_bytes; /* grows while planning */

    char failure[BACKEND_ERROR_MAX]; /* not empty: an operation failed; results are undefined */

    void *(*allocate)(struct backend *be, size_t bytes); /* ARENA_ALIGNMENT; NULL if none left */
    size_t (*available)(struct backend *be);             /* bytes that can still be had */
    void (*release)(struct backend *be, void *memory);
    void (*upload)(struct backend *be, void *to, const void *host, size_t bytes);
    void (*download)(struct backend *be, void *host, const void *from, size_t bytes);
    void (*close)(struct backend *be);
    void *state; /* the backend's own */
};

/* Opens a device. threads: 0 for all cores. On failure returns -1 with a message of at most
 * BACKEND_ERROR_MAX bytes. */
int backend_open(struct backend *be, enum device device, int threads, char *error);
void backend_close(struct backend *be);

/* Called by operations of the plan table: the workspace will hold at least this many bytes. */
void backend_reserve(struct backend *be, size_t bytes);

/* Switches between walking and working. backend_plan_end allocates the workspace; returns -1 with
 * a message if there is no memory for it. */
void backend_plan_begin(struct backend *be);
int backend_plan_end(struct backend *be, char *error);

/* The table whose operations do nothing: what plan tables start from. */
extern const struct operations operations_none;

#ifdef __cplusplus
}
#endif

#endif
