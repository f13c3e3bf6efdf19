/* Shared by the CUDA kernels: the device, its streams, and the prototypes of the table.
 *
 * All work of a step is queued on one stream and nothing waits for the host. Sums are added in an
 * order fixed by the shapes, without atomics on floats: the same bits every time. */
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/plain_c.h"

extern "C" {

struct cuda_products;

/* Work of one kind that was recorded before. */
struct cuda_graph {
    cudaGraphExec_t exec; /* NULL: none yet */
    bool begun;           /* it was done once */
};

struct cuda_state {
    cudaStream_t compute, copy, snapshot;
    cudaEvent_t begun[BACKEND_SLOTS];   /* compute got as far as where slot was last sent */
    cudaEvent_t sent[BACKEND_SLOTS];    /* the slot's copy to the device is done */
    cudaEvent_t fetched[BACKEND_SLOTS]; /* the slot's copy to the host is done */
    cudaEvent_t snapshot_begun;         /* compute got as far as where one was asked for */
    cudaEvent_t snapshot_taken;         /* it is on the host */
    int major, minor;                   /* compute capability */
    size_t shared_bytes;                /* of shared memory that a block can have */
    size_t memory_bytes;                /* of the device */
    size_t free_at_open; /* bytes of device memory that were free before the first allocation */
    size_t peak_bytes;   /* most that has been taken of it */
    struct cuda_graph graphs[BACKEND_GRAPHS];
    bool uses_graphs, without_wgmma;
    void *encode_tensor_map; /* cuTensorMapEncodeTiled, if attention_wgmma_* can run */
    bool looked_for_encode;
    struct cuda_products *products;
};

/* True if the GPU has tensor cores for 8-bit operands (Ada and later). */
static inline bool cuda_has_8_bit(const struct cuda_state *cuda) {
    return cuda->major >= 9 || (cuda->major == 8 && cuda->minor >= 9);
}

static inline struct cuda_state *cuda_state(const struct backend *be) {
    return (struct cuda_state *)be->state;
}

/* How many blocks of `block` elements cover count. */
static inline int64_t blocks_of(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

/* Notes the first failure in be->failure.text. Returns whether there is one. */
bool cuda_failed(struct backend *be, cudaError_t status, const char *what);

/* Before a launch with so much dynamic shared memory: allows it, and asks for as much of the first
 * cache as there is, so that several blocks fit. Returns false if that is not possible. */
bool cuda_shared(struct backend *be, const void *kernel, size_t bytes, const char *what);

/* After a launch: notes whether it was possible. */
void cuda_launched(struct backend *be, const char *what);

#define X(name) void cuda_##name(struct backend *be, const struct name##_args *args);
#define S(name) \
    X(name)     \
    size_t cuda_##name##_scratch(struct backend *be, const struct name##_args *args);
OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S

/* How many gradients of this dtype one of gradient_squares covers. */
int64_t cuda_square_share(enum dtype dtype);

/* The same with scratch from whoever has some: both take cuda_column_sums_scratch bytes, of what
 * they sum up. */
void cuda_sum_columns(struct backend *be, const struct column_sums_args *args, void *scratch);
void cuda_gelu_derivative(struct backend *be, const struct gelu_backward_args *args, void *scratch);

/* See backend_graph. */
void cuda_graph_run(struct backend *be, int which, void (*work)(void *), void *argument);
void cuda_graphs_close(struct cuda_state *cuda);

/* Matrix products: cuBLASLt and its prepared plans. NULL with a message on failure. */
struct cuda_products *cuda_products_open(const struct cuda_state *cuda,
                                         const struct backend_options *options,
                                         struct error *error);
void cuda_products_close(struct cuda_products *products);

/* The algorithms chosen by timing, one product a line, so that a resumed run takes the same.
 * Return -1 with a message. A file that is not there is no error. */
int cuda_products_read(struct cuda_products *products, const char *path, struct error *error);
int cuda_products_write(const struct cuda_products *products, const char *path,
                        struct error *error);
}
