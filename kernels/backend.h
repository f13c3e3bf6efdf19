/* A backend: what is known of a device, what it can do, and its two tables of operations. */
#pragma once

#include "data/util/error.h"
#include "kernels/kernels.h"

enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

enum {
    BACKEND_SLOTS = 2, /* for traffic in which nobody waits, each way: they take turns */
    BACKEND_GRAPHS = 4 /* kinds of work that are started as one */
};

struct ranks;       /* kernels/ranks.h */
struct collectives; /* kernels/collectives.h */

struct backend_options {
    enum device device;
    int threads;         /* CPU: 0 for all cores */
    bool tf32;           /* CUDA: fp32 products may round their operands to 10 bits of fraction */
    bool graphs;         /* CUDA: start operations of a step together, see backend_graph */
    bool without_wgmma;  /* CUDA: on Hopper, attention by the instructions of sm_80 */
    bool autotune;       /* time the algorithms of each product, take the fastest */
    const char *choices; /* optional file of algorithms chosen before, taken if autotune is set */
    const struct ranks *ranks; /* that train together; NULL: this process is alone */
    int gpu;                   /* CUDA: which of those that are seen; chosen by backend_open */
};

enum backend_kind { BACKEND_CPU, BACKEND_CUDA };

/* Properties of an open device. */
struct backend_description {
    enum backend_kind kind;
    bool host_memory;                  /* its memory is the host's */
    const char *name;                  /* "cpu", "cuda" */
    char description[256];             /* the device in words */
    char use[64];                      /* and what is used of it, "x86-64-v4, 2 threads"; "": all */
    char library[64];                  /* that computes matrix products, with its version */
    int threads;                       /* 0: not a CPU */
    bool computes[DTYPE_COUNT];        /* by enum dtype: can compute in it at all */
    bool native[DTYPE_COUNT];          /* products in it at more than fp32 speed */
    bool native_8_bit;                 /* products of 8-bit operands, at more than bf16 speed */
    int64_t square_share[DTYPE_COUNT]; /* gradients of a dtype behind one of gradient_squares */
    bool gelu_of_stored;  /* gelu_forward of any matmul's gelu_in gives the bits of its out */
    int steps_ahead;      /* training steps worth queueing before the oldest one's result is read */
    double link;          /* bytes a second between it and the host, each way: an assumption */
    size_t chunk_bytes;   /* about how much scratch a chunk of work should have to keep all busy */
    size_t library_bytes; /* that the library of products takes by itself: an estimate */
};

/* Bytes to be copied to the host. */
struct transfer {
    const void *from; /* memory of the backend, or of backend_host_allocate */
    void *host;       /* of backend_host_allocate */
    size_t bytes;
};

/* Functions of a device; the inline functions below are their contracts. */
struct device_functions {
    void *(*allocate)(struct backend *be, size_t bytes);
    size_t (*available)(struct backend *be);
    void (*release)(struct backend *be, void *memory);
    void (*upload)(struct backend *be, void *to, const void *host, size_t bytes);
    void (*download)(struct backend *be, void *host, const void *from, size_t bytes);
    void *(*host_allocate)(struct backend *be, size_t bytes);
    void (*host_release)(struct backend *be, void *memory);
    void (*send)(struct backend *be, int slot, void *to, const void *host, size_t bytes);
    void (*sent)(struct backend *be, int slot);
    void (*fetch)(struct backend *be, int slot, void *host, const void *from, size_t bytes);
    void (*fetched)(struct backend *be, int slot);
    void (*snapshot)(struct backend *be, const struct transfer *transfers, int count);
    void (*snapshot_guard)(struct backend *be);
    bool (*snapshot_there)(struct backend *be, bool wait);
    void (*graph)(struct backend *be, int which, void (*work)(void *), void *argument);
    size_t (*peak_bytes)(struct backend *be);
    int (*write_choices)(struct backend *be, const char *path, struct error *error);
    void (*close)(struct backend *be);
};

struct backend {
    /* The table in force. Normally `run`; `plan` walks a step without touching data, so that each
     * operation can announce its workspace and prepare what it wants prepared before step 0. */
    const struct operations *op;
    const struct operations *run, *plan;
    struct observer *observer;             /* NULL: nobody watches, see kernels/observer.h */
    const struct collectives *collectives; /* what goes to and from other ranks; never NULL */

    const struct device_functions *functions;
    struct backend_description device;
    void *state; /* the backend's own */

    void *workspace;        /* see backend_workspace */
    size_t workspace_bytes; /* grows while planning */
    bool only_sizes;        /* are wanted of a plan: what it prepares is not tried out */

    struct error failure; /* not empty: an operation failed; results are undefined */
};

/* Memory of the backend, aligned to ARENA_ALIGNMENT; NULL if none is left. */
static inline void *backend_allocate(struct backend *be, size_t bytes) {
    return be->functions->allocate(be, bytes);
}

/* Bytes that can still be had. */
static inline size_t backend_available(struct backend *be) {
    return be->functions->available(be);
}

static inline void backend_release(struct backend *be, void *memory) {
    be->functions->release(be, memory);
}

/* Copies that the host waits for, after the operations called before. `to` of an upload and `from`
 * of a download are memory of the backend, or of backend_host_allocate. */
static inline void backend_upload(struct backend *be, void *to, const void *host, size_t bytes) {
    be->functions->upload(be, to, host, bytes);
}

static inline void backend_download(struct backend *be, void *host, const void *from,
                                    size_t bytes) {
    be->functions->download(be, host, from, bytes);
}

/* Memory of the host, which operations too can read and write where it lies. NULL if none is left.
 */
static inline void *backend_host_allocate(struct backend *be, size_t bytes) {
    return be->functions->host_allocate(be, bytes);
}

/* Waits for the operations called before. */
static inline void backend_host_release(struct backend *be, void *memory) {
    be->functions->host_release(be, memory);
}

/* Traffic in which nobody waits: BACKEND_SLOTS slots take turns each way. The host side is memory
 * of backend_host_allocate. What is sent is there for operations called afterwards, and stays until
 * the slot is sent again; backend_sent returns once the host memory may be filled anew. What is
 * fetched is what operations called before have left; backend_fetched returns once it is there. */
static inline void backend_send(struct backend *be, int slot, void *to, const void *host,
                                size_t bytes) {
    be->functions->send(be, slot, to, host, bytes);
}

static inline void backend_sent(struct backend *be, int slot) {
    be->functions->sent(be, slot);
}

static inline void backend_fetch(struct backend *be, int slot, void *host, const void *from,
                                 size_t bytes) {
    be->functions->fetch(be, slot, host, from, bytes);
}

static inline void backend_fetched(struct backend *be, int slot) {
    be->functions->fetched(be, slot);
}

/* Copies memory to the host as operations called before have left it, in pieces, beside those
 * called later. Of these, the ones that change it come after a snapshot_guard: they wait on the
 * device until it is copied. snapshot_there tells whether the host may look, or waits until it may.
 * One at a time. */
static inline void backend_snapshot(struct backend *be, const struct transfer *transfers,
                                    int count) {
    be->functions->snapshot(be, transfers, count);
}

static inline void backend_snapshot_guard(struct backend *be) {
    be->functions->snapshot_guard(be);
}

static inline bool backend_snapshot_there(struct backend *be, bool wait) {
    return be->functions->snapshot_there(be, wait);
}

/* Does work(argument): operations, and no traffic. Where the device can start them as one, they are
 * recorded first, and work may be called twice, if that fails. Each kind of work, 0 to
 * BACKEND_GRAPHS - 1, calls the same operations each time, with arguments of its own. */
static inline void backend_graph(struct backend *be, int which, void (*work)(void *),
                                 void *argument) {
    be->functions->graph(be, which, work, argument);
}

/* The most memory that this process has used so far, in bytes. */
static inline size_t backend_peak_bytes(struct backend *be) {
    return be->functions->peak_bytes(be);
}

/* Writes down what autotune chose, to be given as options.choices later. Returns -1 with a message.
 * Does nothing where there is nothing to choose. */
static inline int backend_write_choices(struct backend *be, const char *path, struct error *error) {
    return be->functions->write_choices(be, path, error);
}

/* How many sums gradient_squares makes of these. */
static inline int64_t backend_squares(const struct backend *be, const struct tensor *gradients) {
    int64_t share = be->device.square_share[gradients->dtype];
    return (tensor_count(gradients) + share - 1) / share;
}

void backend_close(struct backend *be);

/* Scratch memory. While planning: notes that this many bytes will be wanted, and returns NULL.
 * Later returns them; that they were planned is asserted. It is one block for all, good until the
 * next operation with scratch. */
void *backend_workspace(struct backend *be, size_t bytes);

/* True while a step is only planned: operations announce their workspace and touch no data. */
static inline bool backend_plans(const struct backend *be) {
    return be->op == be->plan;
}

/* Switches between walking and working. backend_plan_end allocates the workspace; returns -1 with
 * a message if there is no memory for it. */
void backend_plan_begin(struct backend *be);
int backend_plan_end(struct backend *be, struct error *error);

/* Operations that do nothing: the plan of those without scratch. */
#define X(name) void none_##name(struct backend *be, const struct name##_args *args);
OPERATIONS(X)
#undef X
