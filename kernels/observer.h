/* Watching operations: a table that calls someone before and after each one of the table in force.
 *
 * What a profile and an audit have in common. Operations run as they always do, on the same
 * arguments, so what is computed has the same bits. On a GPU `after` finds the operation queued; a
 * download waits for it. */
#pragma once

#include "kernels/backend.h"

enum operation_id {
#define X(name) ID_##name,
    OPERATIONS(X)
#undef X
        OPERATION_IDS
};

const char *operation_name(enum operation_id id); /* as in OPERATIONS */

/* The label that the caller gave an operation, or NULL. args: its struct NAME_args. */
const struct trace_label *operation_label(enum operation_id id, const void *args);

struct observer {
    /* Both optional. args: the struct NAME_args of that operation; its tensors may live on the
     * caller's stack, so what is kept of them must be copied. */
    void (*before)(struct observer *observer, enum operation_id id, const void *args);
    void (*after)(struct observer *observer, enum operation_id id, const void *args);
};

/* From now on operations of be are watched, until observer is NULL. Not while planning. */
void backend_observe(struct backend *be, struct observer *observer);
