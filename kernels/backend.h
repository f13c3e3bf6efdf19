/* A backend: a device, its memory, and its filled table of operations. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

enum { BACKEND_ERROR_MAX = 1024 };

struct backend_options {
    enum device device;
    int threads;         /* CPU: 0 for all cores */
    bool tf32;           /* CUDA: fp32 products may round their operands to 10 bits of fraction */
    bool autotune;       /* time the algorithms of each product, take the fastest */
    const char *choices; /* optional file of algorithms chosen before, taken if autotune is set */
};

struct backend {
    /* The table in force. Normally `run`; `plan` walks a step without touching data, so that each
     * operation can announce its workspace and prepare what it wants prepared before step 0. */
    const struct operations *op;
    const struct operations *run, *plan;
    struct observer *observer; /* NULL: nobody watches, see kernels/observer.h */

    const char *name;      /* "cpu", "cuda" */
    char description[256]; /* of the device */
    const char *level;     /* of the processor's instructions, "x86-64-v3"; NULL if not a CPU */
    char library[64];      /* that computes matrix products, with its version */
    int threads;           /* 0: not a CPU */
    bool has_bf16;         /* can compute in bf16 at all */
    bool native_bf16;      /* bf16 products at more than fp32 speed */
    bool native_fp16;
    bool gelu_of_stored; /* gelu_forward of a matmul's gelu_in gives the bits of its out */
    int steps_ahead;     /* training steps worth queueing before the oldest one's result is read */
    size_t chunk_bytes;  /* about how much scratch a chunk of work should have to keep all busy */

    size_t library_bytes; /* that the library of products takes by itself: an estimate */

    void *workspace;        /* one block shared by all operations, valid within one call */
    size_t workspace_bytes; /* grows while planning */

    char failure[BACKEND_ERROR_MAX]; /* not empty: an operation failed; results are undefined */

    void *(*allocate)(struct backend *be, size_t bytes); /* ARENA_ALIGNMENT; NULL if none left */
    size_t (*available)(struct backend *be);             /* bytes that can still be had */
    void (*release)(struct backend *be, void *memory);
    void (*upload)(struct backend *be, void *to, const void *host, size_t bytes);
    void (*download)(struct backend *be, void *host, const void *from, size_t bytes);

    /* Traffic in which nobody waits: two slots take turns each way. The host side is memory of
     * host_allocate. What is sent is there for operations called afterwards, and stays until the
     * slot is sent again; sent() returns once the host memory may be filled anew. What is fetched
     * is what operations called before have left; fetched() returns once it is there. */
    void *(*host_allocate)(struct backend *be, size_t bytes);
    void (*host_release)(struct backend *be, void *memory);
    void (*send)(struct backend *be, int slot, void *to, const void *host, size_t bytes);
    void (*sent)(struct backend *be, int slot);
    void (*fetch)(struct backend *be, int slot, void *host, const void *from, size_t bytes);
    void (*fetched)(struct backend *be, int slot);

    size_t (*peak_bytes)(struct backend *be); /* of memory that this process has used so far */

    /* Writes down what autotune chose, to be given as options.choices later. Returns -1 with a
     * message. Does nothing where there is nothing to choose. */
    int (*write_choices)(struct backend *be, const char *path, char *error);

    void (*close)(struct backend *be);
    void *state; /* the backend's own */
};

void backend_close(struct backend *be);

/* Called while planning: the workspace will hold at least this many bytes. */
void backend_reserve(struct backend *be, size_t bytes);

/* The workspace, for an operation that runs and takes this many bytes of it. That they were
 * reserved is asserted. */
void *backend_workspace(struct backend *be, size_t bytes);

/* Switches between walking and working. backend_plan_end allocates the workspace; returns -1 with
 * a message if there is no memory for it. */
void backend_plan_begin(struct backend *be);
int backend_plan_end(struct backend *be, char *error);

/* Operations that do nothing, and the table of them: the plan of those without scratch. */
#define X(name) void none_##name(struct backend *be, const struct name##_args *args);
OPERATIONS(X)
#undef X
extern const struct operations operations_none;

#ifdef __cplusplus
}
#endif

#endif
