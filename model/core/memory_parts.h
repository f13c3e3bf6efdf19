/* What the memory of a model and its training goes to, part by part. */
#pragma once

#include <stddef.h>

/* X(PART, field, name): in the order in which they are printed. The total is the sum of the parts
 * of the device.
 *   master     with the remainders of split ones
 *   lower      16-bit weights beside them
 *   batches, workspace  of a trainer; those of other uses are not planned
 *   exchange   of gradients and sums on their way to other ranks
 *   library    of the library of products itself; an estimate
 *   host       for what is offloaded
 *   snapshot   for the copy that checkpoints are written from (model/core/snapshot.h); a run without
 *              memory for it does without */
#define MEMORY_DEVICE_PARTS(X)                 \
    X(MASTER, master, "fp32 weights")          \
    X(LOWER, lower, "16-bit copy")             \
    X(GRADIENTS, gradients, "gradients")       \
    X(MOMENTS, moments, "moments")             \
    X(ACTIVATIONS, activations, "activations") \
    X(BATCHES, batches, "batches")             \
    X(WORKSPACE, workspace, "workspace")       \
    X(EXCHANGE, exchange, "exchange")          \
    X(LIBRARY, library, "library")
#define MEMORY_HOST_PARTS(X)         \
    X(HOST, host, "and of the host") \
    X(SNAPSHOT, snapshot, "and for saving")

/* Bytes. */
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
    /* The first so many are the state of a training, which does not depend on its batch. */
    MEMORY_PARTS_STATE = MEMORY_PART_ACTIVATIONS
};

const char *memory_part_name(enum memory_part part);
size_t memory_part_bytes(const struct memory_plan *plan, enum memory_part part);

/* Bytes of the device in all, and of these the ones that do not depend on the micro-batch. */
size_t memory_total(const struct memory_plan *plan);
size_t memory_state_bytes(const struct memory_plan *plan);
