/* What the memory of a model and its training goes to: each part is said once, here. */
#pragma once

#include <stddef.h>

/* X(PART, field, name): in the order in which they are printed.
 *   master     with the remainders of split ones
 *   lower      16-bit weights beside them
 *   batches, workspace  of a trainer; those of other uses are not planned
 *   exchange   of gradients and sums on their way to other ranks
 *   library    of the library of products itself; an estimate
 *   host       of the host, for what is offloaded; no part of the total
 *   snapshot   of the host, for the copy that checkpoints are written from (model/snapshot.h); no
 *              part of the total, since a run without memory for it does without */
#define MEMORY_PARTS(X)                        \
    X(MASTER, master, "fp32 weights")          \
    X(LOWER, lower, "16-bit copy")             \
    X(GRADIENTS, gradients, "gradients")       \
    X(MOMENTS, moments, "moments")             \
    X(ACTIVATIONS, activations, "activations") \
    X(BATCHES, batches, "batches")             \
    X(WORKSPACE, workspace, "workspace")       \
    X(EXCHANGE, exchange, "exchange")          \
    X(LIBRARY, library, "library")             \
    X(TOTAL, total, "total")                   \
    X(HOST, host, "and of the host")           \
    X(SNAPSHOT, snapshot, "and for saving")

/* Bytes. */
struct memory_plan {
#define X(part, field, name) size_t field;
    MEMORY_PARTS(X)
#undef X
};

enum memory_part {
#define X(part, field, name) MEMORY_PART_##part,
    MEMORY_PARTS(X)
#undef X
    /* The first so many are the state of a training, which does not depend on its batch. */
    MEMORY_PARTS_STATE = MEMORY_PART_ACTIVATIONS
};

const char *memory_part_name(enum memory_part part);
size_t memory_part_bytes(const struct memory_plan *plan, enum memory_part part);
