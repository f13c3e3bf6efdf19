/* Shared by the CUDA kernels: the device, its streams, and the prototypes of the table.
 *
 * All work of a step is queued on one stream and nothing waits for the host. Sums are added in an
 * order fixed by the shapes, without atomics on floats: the same bits every time. */
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/plain_c.h"

extern "C" {

struct cuda_products;

/* A recorded sequence of operations. */
struct cuda_graph {
    cudaGraphExec_t exec; /* NULL: not recorded yet */
    const void *owner;    /* owner of the operations; NULL: they have never run */
    uint64_t releases;    /* cuda_state.releases when they ran first */
};

/* Large allocations of pinned memory that are known: moments, remainders and a snapshot of each of
 * a few trainers. More of them count until the device is closed. */
enum { CUDA_PINS = 16 };

/* Copies of backend_copy. */
struct cuda_lane {
    cudaStream_t stream;
    cudaEvent_t begun[BACKEND_SLOTS];  /* marks the position in `compute` of the copy */
    cudaEvent_t copied[BACKEND_SLOTS]; /* the slot's copy is done */
};

struct cuda_state {
    cudaStream_t compute, copy, snapshot;
    cudaEvent_t begun[BACKEND_SLOTS];   /* the position in `compute` where a slot was last sent */
    cudaEvent_t sent[BACKEND_SLOTS];    /* the slot's copy to the device is done */
    cudaEvent_t fetched[BACKEND_SLOTS]; /* the slot's copy to the host is done */
    cudaEvent_t snapshot_begun; /* the position in `compute` where the snapshot was requested */
    cudaEvent_t snapshot_taken; /* the snapshot is on the host */
    cudaEvent_t settled;        /* the position in `compute` that the host waits for */
    int major, minor;           /* compute capability */
    int multiprocessors;        /* their number */
    size_t shared_bytes;        /* maximum of shared memory of a block */
    size_t memory_bytes;        /* total device memory */
    size_t free_at_open; /* bytes of device memory that were free before the first allocation */
    size_t peak_bytes;   /* peak use of device memory */
    struct {
        void *memory;
        size_t bytes;
    } pins[CUDA_PINS];   /* large allocations of pinned memory; memory NULL: a free entry */
    size_t pinned_bytes; /* their sum */
    size_t may_pin;      /* host memory that could be pinned when the device was opened */
    int ranks_here;      /* ranks on this machine, which pin memory too */
    uint64_t releases;   /* number of times that memory was released */
    struct cuda_graph graphs[BACKEND_GRAPHS];
    bool uses_graphs, without_wgmma;
    bool tf32;               /* products of fp32 may round their operands to 10 bits of fraction */
    void *encode_tensor_map; /* cuTensorMapEncodeTiled, if attention_wgmma_* can run */
    bool looked_for_encode;
    struct cuda_products *products;
    struct cuda_lane lanes[COPY_LANES];
};

/* True if the GPU has tensor cores for 8-bit operands (Ada and later). */
static inline bool cuda_has_8_bit(const struct cuda_state *cuda) {
    return cuda->major >= 9 || (cuda->major == 8 && cuda->minor >= 9);
}

/* True if the shared memory of a multiprocessor holds so many blocks of `bytes` each. The system
 * takes another 1024 bytes of every block; one block can have everything but those. */
static inline bool cuda_blocks_fit(const struct cuda_state *cuda, int blocks, size_t bytes) {
    const size_t reserved = 1024;
    return (size_t)blocks * (bytes + reserved) <= cuda->shared_bytes + reserved;
}

static inline struct cuda_state *cuda_state(const struct backend *be) {
    return (struct cuda_state *)be->state;
}

/* Records the first failure in be->failure.text. Returns true if there is one. */
bool cuda_failed(struct backend *be, cudaError_t status, const char *what);

/* Returns a function of the driver, which is not linked, or NULL if the driver has none. */
void *cuda_driver_function(const char *name);

/* Called before a launch with `bytes` of dynamic shared memory: allows that size, and requests the
 * largest share of the L1 cache, so that several blocks fit. Returns false if that is not
 * possible. */
bool cuda_shared(struct backend *be, const void *kernel, size_t bytes, const char *what);

/* Called after a launch: records its failure. */
void cuda_launched(struct backend *be, const char *what);

#define X(name) void cuda_##name(struct backend *be, const struct name##_args *args);
#define S(name) \
    X(name)     \
    size_t cuda_##name##_scratch(struct backend *be, const struct name##_args *args);
OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S

/* Number of gradients of this dtype that one element of gradient_squares covers. */
int64_t cuda_square_share(enum dtype dtype);

/* Variants with scratch memory from the caller: both need cuda_column_sums_scratch bytes, for the
 * matrix that they sum. */
void cuda_sum_columns(struct backend *be, const struct column_sums_args *args, void *scratch);
void cuda_gelu_derivative(struct backend *be, const struct gelu_backward_args *args, void *scratch);

/* Merges the amax of a tensor into *track_amax, in a pass of its own. */
void cuda_find_amax(struct backend *be, struct amax *track_amax, const struct tensor *tensor);

/* See backend_graph. */
void cuda_graph_run(struct backend *be, int which, const void *owner, void (*work)(void *),
                    void *argument);
void cuda_graphs_close(struct cuda_state *cuda);

/* Opens cuBLASLt: sets cuda_state(be)->products, be->algorithms and the description's properties of
 * the library. Returns -1 with a message; cuda_products_close is due then, too, unless products is
 * NULL. */
int cuda_products_open(struct backend *be, const struct backend_options *options,
                       struct error *error);
void cuda_products_close(struct cuda_products *products);

/* See backend_fallback. */
const char *cuda_products_fallback(const struct cuda_products *products, int index);
}
