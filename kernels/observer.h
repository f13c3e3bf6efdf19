/* Observes operations: a table that calls an observer before and after each operation.
 *
 * Profile and audit use it. Operations run as usual, on the same arguments, so results have the
 * same bits. On a GPU the operation is only queued when `after` is called; a download waits for
 * it. */
#pragma once

#include "kernels/backend.h"

enum operation_id {
#define X(name) ID_##name,
    OPERATIONS(X)
#undef X
        OPERATION_IDS
};

const char *operation_name(enum operation_id id); /* as in OPERATIONS */

/* Returns the label that the caller gave an operation, or NULL. args: its struct NAME_args. */
const struct trace_label *operation_label(enum operation_id id, const void *args);

struct observer {
    /* Both optional. args: the struct NAME_args of that operation. Its tensors may be on the
     * caller's stack, so an observer must copy them to store them. */
    void (*before)(struct observer *observer, enum operation_id id, const void *args);
    void (*after)(struct observer *observer, enum operation_id id, const void *args);
};

/* Observes the operations of be from now on; NULL ends this. Not while planning. */
void backend_observe(struct backend *be, struct observer *observer);
