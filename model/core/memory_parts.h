/* Memory of a model and its training, by part. */
#pragma once

#include <stddef.h>

/* X(PART, field, name): in the order in which they are printed. The total is the sum of the
 * device parts.
 *   master     master weights, including the remainders of split ones, and frozen weights
 *   copies     16-bit copies of weights
 *   batches, workspace  of a trainer; not planned for other uses
 *   exchange   buffers for gradients and sums sent between ranks
 *   library    memory that libraries and the driver take themselves; an estimate
 *   host       offloaded tensors
 *   streamed   weights of layers that are streamed from the host
 *   host_gradients, host_activations  those of layers that are streamed to the host
 *   snapshot   copy that checkpoints are written from (model/optimize/snapshot.h); optional:
 *              a run continues without it if memory is short */
#define MEMORY_DEVICE_PARTS(X)                 \
    X(MASTER, master, "weights")               \
    X(COPIES, copies, "16-bit copy")           \
    X(GRADIENTS, gradients, "gradients")       \
    X(MOMENTS, moments, "moments")             \
    X(ACTIVATIONS, activations, "activations") \
    X(BATCHES, batches, "batches")             \
    X(WORKSPACE, workspace, "workspace")       \
    X(EXCHANGE, exchange, "exchange")          \
    X(LIBRARY, library, "library")
#define MEMORY_HOST_PARTS(X)                                 \
    X(HOST, host, "and of the host")                         \
    X(STREAMED, streamed, "and layers of the host")          \
    X(HOST_GRADIENTS, host_gradients, "and gradients")       \
    X(HOST_ACTIVATIONS, host_activations, "and activations") \
    X(SNAPSHOT, snapshot, "and for saving")

/* Sizes in bytes. */
struct memory_plan {
#define X(part, field, name) size_t field;
    MEMORY_DEVICE_PARTS(X)
    MEMORY_HOST_PARTS(X)
#undef X
};

enum memory_part {
#define X(part, field, name) MEMORY_PART_##part,
    MEMORY_DEVICE_PARTS(X) MEMORY_PART_TOTAL,
    MEMORY_HOST_PARTS(X)
#undef X
        MEMORY_PARTS,
    /* The parts before this one are the training state, which does not depend on the batch. */
    MEMORY_PARTS_STATE = MEMORY_PART_ACTIVATIONS
};

const char *memory_part_name(enum memory_part part);
size_t memory_part_bytes(const struct memory_plan *plan, enum memory_part part);

/* Return the total bytes of device memory, those of the host but for saving, and the bytes that do
 * not depend on the micro-batch. */
size_t memory_total(const struct memory_plan *plan);
size_t memory_host(const struct memory_plan *plan);
size_t memory_state_bytes(const struct memory_plan *plan);
