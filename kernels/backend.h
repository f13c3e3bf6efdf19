/* A backend: description and functions of a device, and its two tables of operations. */
#pragma once

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/kernels.h"

enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

/* Devices that time the algorithms of each product and take the fastest: none; GPUs, for a limited
 * time; all. */
enum autotune { AUTOTUNE_OFF, AUTOTUNE_AUTO, AUTOTUNE_ON };

enum {
    BACKEND_SLOTS = 2,  /* for asynchronous transfers, in each direction: they alternate */
    BACKEND_GRAPHS = 34 /* sequences of operations that are launched as one graph */
};

struct ranks;       /* kernels/ranks.h */
struct collectives; /* kernels/collectives.h */

struct backend_options {
    enum device device;
    int threads;        /* CPU: 0 for all cores */
    bool tf32;          /* CUDA: fp32 products may round their operands to 10 bits of fraction */
    bool graphs;        /* CUDA: start operations of a step together, see backend_graph */
    bool without_wgmma; /* CUDA: on Hopper, attention by the instructions of sm_80 */
    enum autotune autotune;
    double autotune_seconds;   /* AUTOTUNE_AUTO: limit of all trials */
    const char *algorithms;    /* optional file of those chosen earlier, used with autotune */
    const char *store;         /* CUDA: optional directory of algorithms that earlier runs timed */
    const struct ranks *ranks; /* ranks that train together; NULL: a single process */
    int gpu;                   /* CUDA: index among the visible GPUs; chosen by backend_open */
};

enum backend_kind { BACKEND_CPU, BACKEND_CUDA };

/* Properties of an open device. */
struct backend_description {
    enum backend_kind kind;
    bool host_memory;                  /* its memory is the host's */
    const char *name;                  /* "cpu", "cuda" */
    char description[256];             /* name and properties of the device */
    char use[64];                      /* part of it in use, "x86-64-v4, 2 threads"; "": all */
    char library[64];                  /* library of matrix products, with its version */
    int threads;                       /* 0: not a CPU */
    bool computes[DTYPE_COUNT];        /* by enum dtype: supports computing in it */
    bool delta_rule;                   /* supports delta_rule_forward and _backward */
    bool native[DTYPE_COUNT];          /* products in it are faster than in fp32 */
    bool native_8_bit;                 /* products of 8-bit operands are faster than in bf16 */
    bool attention_bf16;               /* CPU: attention multiplies bf16 without widening it */
    int64_t stored_rows[DTYPE_COUNT];  /* by dtype of b: most rows of a matmul with b_stored */
    int64_t square_share[DTYPE_COUNT]; /* gradients of a dtype that one element of gradient_squares
                                          covers */
    bool gelu_of_stored;  /* gelu_forward of a matmul's stored pre_activation gives the same bits as
                             the matmul's fused gelu */
    int steps_ahead;      /* training steps worth queueing before the oldest one's result is read */
    double link;          /* assumed bandwidth to the host in bytes a second, each way */
    size_t chunk_bytes;   /* approximate scratch of a chunk of work that keeps the device busy */
    size_t graph_bytes;   /* estimated memory of a sequence of backend_graph */
    size_t library_bytes; /* estimated memory that libraries and the driver allocate themselves,
                             beyond what is taken when the device has been opened */
};

/* Effect of autotune on the matmuls planned so far. */
struct tuning {
    bool on;        /* it applies to this device */
    int timed;      /* matmuls whose algorithms were timed */
    int untimed;    /* matmuls with the library's first algorithm: no time or memory was left */
    double seconds; /* duration of all trials */
};

/* The algorithms of a backend that autotune applies to (kernels/algorithms.h); the pointer is NULL
 * for others, for which these functions do nothing. Those that return int return -1 with a message.
 *
 * write: writes the algorithms in use, for options.algorithms of a later run. store: adds what this
 * run has timed to options.store. share: copies the algorithms of rank 0, which has planned its
 * matmuls, to ranks that have not; all ranks call it, and only with algorithms. */
struct algorithms;
struct tuning algorithms_tuning(const struct algorithms *algorithms);
int algorithms_write(const struct algorithms *algorithms, const char *path, struct error *error);
int algorithms_store(const struct algorithms *algorithms, struct error *error);
int algorithms_share(struct algorithms *algorithms, const struct ranks *ranks, struct error *error);

/* Bytes to copy to the host. */
struct transfer {
    const void *from; /* memory of the backend, or of backend_host_allocate */
    void *host;       /* memory of backend_host_allocate */
    size_t bytes;
};

/* The lanes of asynchronous copies between device and host, by what they move. */
enum copy_lane { LANE_WEIGHTS, LANE_GRADIENTS, LANE_ACTIVATIONS, COPY_LANES };

struct copy_slot {
    enum copy_lane lane;
    int slot; /* below BACKEND_SLOTS */
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
    void (*copy)(struct backend *be, struct copy_slot slot, void *to, const void *from,
                 size_t bytes);
    void (*copied)(struct backend *be, struct copy_slot slot);
    void (*snapshot)(struct backend *be, const struct transfer *transfers, int count);
    void (*snapshot_guard)(struct backend *be);
    bool (*snapshot_ready)(struct backend *be, bool wait);
    void (*graph)(struct backend *be, int which, const void *owner, void (*work)(void *),
                  void *argument);
    size_t (*peak_bytes)(struct backend *be);
    bool (*multiplies_blocks)(const struct backend *be, const struct quantize_format *format);
    const char *(*fallback)(const struct backend *be, int index);
    void (*close)(struct backend *be);
};

struct backend {
    /* The current table. Normally `run`; `plan` walks a step without touching data, so that each
     * operation can report its workspace and prepare before step 0. */
    const struct operations *op;
    const struct operations *run, *plan;
    struct observer *observer;             /* NULL: none, see kernels/observer.h */
    const struct collectives *collectives; /* communication with other ranks; never NULL */
    struct algorithms *algorithms;         /* NULL: autotune is off, or does not apply */

    const struct device_functions *functions;
    struct backend_description device;
    void *state; /* private to the backend */

    void *workspace;        /* see backend_workspace */
    size_t workspace_bytes; /* grows while planning */
    bool only_sizes;        /* see backend_plan_sizes */

    struct error failure; /* not empty: an operation failed; results are undefined */
};

/* Allocates memory of the backend, aligned to ARENA_ALIGNMENT; NULL if none is left. */
static inline void *backend_allocate(struct backend *be, size_t bytes) {
    return be->functions->allocate(be, bytes);
}

/* Returns the bytes that can still be allocated. */
static inline size_t backend_available(struct backend *be) {
    return be->functions->available(be);
}

static inline void backend_release(struct backend *be, void *memory) {
    be->functions->release(be, memory);
}

/* Synchronous copies, after the operations called before. `to` of an upload and `from` of a
 * download are memory of the backend, or of backend_host_allocate. */
static inline void backend_upload(struct backend *be, void *to, const void *host, size_t bytes) {
    be->functions->upload(be, to, host, bytes);
}

static inline void backend_download(struct backend *be, void *host, const void *from,
                                    size_t bytes) {
    be->functions->download(be, host, from, bytes);
}

/* Allocates memory of the host that operations can also access directly. NULL if none is left. */
static inline void *backend_host_allocate(struct backend *be, size_t bytes) {
    return be->functions->host_allocate(be, bytes);
}

/* Waits for the operations called before. */
static inline void backend_host_release(struct backend *be, void *memory) {
    be->functions->host_release(be, memory);
}

/* Asynchronous transfers: BACKEND_SLOTS slots alternate in each direction. `host` is memory of
 * backend_host_allocate.
 *
 * send copies to the device, for operations called afterwards; the data stays there until the slot
 * is sent again. sent returns once the host memory may be refilled. fetch copies the results of
 * operations called before to the host; fetched returns once they have arrived. */
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

/* Asynchronous copies within the work of backend_graph, to the device or from it, in lanes that
 * have slots of their own. A copy begins once the operations and the copies of its lane called
 * before are done, and runs concurrently with operations called later. Those called after copied
 * come after the last copy of the slot. Work that calls copy ends with copied for the lane's last
 * copy. Memory of the host is that of backend_host_allocate. The host never waits. */
static inline void backend_copy(struct backend *be, struct copy_slot slot, void *to,
                                const void *from, size_t bytes) {
    be->functions->copy(be, slot, to, from, bytes);
}

static inline void backend_copied(struct backend *be, struct copy_slot slot) {
    be->functions->copied(be, slot);
}

/* Copies memory to the host as operations called before have left it, in pieces, concurrently with
 * operations called later. Later operations that change this memory come after a snapshot_guard:
 * they wait on the device until it is copied. snapshot_ready returns true if the copy is complete;
 * with `wait` it waits for that. One snapshot at a time. */
static inline void backend_snapshot(struct backend *be, const struct transfer *transfers,
                                    int count) {
    be->functions->snapshot(be, transfers, count);
}

static inline void backend_snapshot_guard(struct backend *be) {
    be->functions->snapshot_guard(be);
}

static inline bool backend_snapshot_ready(struct backend *be, bool wait) {
    return be->functions->snapshot_ready(be, wait);
}

/* Calls work(argument), which calls operations and does no transfers but copies. If the device
 * supports graphs, the operations are recorded once and later launched as one, without calling
 * work. So the operations of an owner for each `which`, 0 to BACKEND_GRAPHS - 1, must have the same
 * arguments each time, as long as no memory of the backend is released. If recording fails, work
 * may be called twice. */
static inline void backend_graph(struct backend *be, int which, const void *owner,
                                 void (*work)(void *), void *argument) {
    be->functions->graph(be, which, owner, work, argument);
}

/* Returns the peak memory of this process so far, in bytes. On a GPU it is the memory by which the
 * free memory fell since the backend was opened, so other processes on the GPU disturb it. */
static inline size_t backend_peak_bytes(struct backend *be) {
    return be->functions->peak_bytes(be);
}

/* True if matmuls read codes of this format, that of an operand whose columns they reduce over, and
 * the scales of its blocks. */
static inline bool backend_multiplies_blocks(const struct backend *be,
                                             const struct quantize_format *format) {
    return be->functions->multiplies_blocks && be->functions->multiplies_blocks(be, format);
}

/* Returns a line about the index-th matmul that does not run as requested, with the reason; NULL if
 * there are fewer. Valid once the matmuls are planned. */
static inline const char *backend_fallback(const struct backend *be, int index) {
    return be->functions->fallback(be, index);
}

/* Returns the number of sums that gradient_squares computes for these gradients. */
static inline int64_t backend_squares(const struct backend *be, const struct tensor *gradients) {
    return blocks_of(tensor_count(gradients), be->device.square_share[gradients->dtype]);
}

void backend_close(struct backend *be);

/* Returns scratch memory. While planning, records that this many bytes are needed, and returns
 * NULL. Later calls assert that they were planned. It is one block for all operations, valid until
 * the next operation with scratch. */
void *backend_workspace(struct backend *be, size_t bytes);

/* True while a step is only planned: operations report their workspace and touch no data. */
static inline bool backend_plans(const struct backend *be) {
    return be->op == be->plan;
}

/* Begins and ends planning. backend_plan_end allocates the workspace; returns -1 with a message if
 * there is no memory for it. backend_plan_pause ends it without that, and returns the bytes. */
void backend_plan_begin(struct backend *be);
size_t backend_plan_pause(struct backend *be);
int backend_plan_end(struct backend *be, struct error *error);

/* Sets whether only sizes are needed from plans: products are then not tried, and with autotune the
 * sizes suffice for whatever it chooses. Returns the value before. */
bool backend_plan_sizes(struct backend *be, bool only_sizes);

/* Sets the bytes that the workspace has at least, and returns those planned before. */
size_t backend_plan_from(struct backend *be, size_t bytes);

/* Operations that do nothing: the plan of operations without scratch. */
#define X(name) void none_##name(struct backend *be, const struct name##_args *args);
OPERATIONS(X)
#undef X
