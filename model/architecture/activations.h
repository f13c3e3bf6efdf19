/* Table of the model's activations: the name, writer, reader and memory of each. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tensor.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/parameters.h"

/* Activations that the backward pass recomputes, bit for bit the same, so that all layers share one
 * buffer for them. A level includes those before it. The first three are the values of
 * train.recompute; the last is for models without a backward pass, which save nothing. */
enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_GELU,
    RECOMPUTE_LAYER, /* all of a layer but its input */
    RECOMPUTE_NOT_SAVED
};

/* Activations in the order of the forward pass, then the statistics. */
enum activation_id {
#define X(field, ...) ACTIVATION_##field,
    LAYER_ACTIVATIONS(X) MODEL_ACTIVATIONS(X) ACTIVATION_COUNT,
    ACTIVATION_LAST = ACTIVATION_COUNT - 1,
    LAYER_STATISTICS(X) MODEL_STATISTICS(X) ACTIVATIONS_AND_STATISTICS
#undef X
};

enum scratch {
    SCRATCH_NONE,
#define X(name) SCRATCH_##name,
    SCRATCH(X)
#undef X
        SCRATCH_COUNT
};

struct layer_activations {
#define X(field, ...) struct tensor field;
    LAYER_ACTIVATIONS(X)
    LAYER_STATISTICS(X) /* rank 1 */
};

/* Gradients of activations, one tensor for all layers. */
struct activation_gradients {
    LAYER_ACTIVATIONS(X)
    MODEL_ACTIVATIONS(X)
};

struct activations {
    MODEL_ACTIVATIONS(X)
    MODEL_STATISTICS(X) /* rank 1 */
#undef X
    struct layer_activations *layers; /* [n_layer] */
    struct activation_gradients gradients;
    /* Like lnf_out and its gradient, in scratch that is free while the head runs: copies of the
     * rows whose targets count, if the head reads these alone. */
    struct tensor head_in, dhead_in;
};

struct activation {
    const char *name; /* shown in an audit */
    bool layered;     /* one in each layer */
    bool statistic;   /* a vector of fp32 */
    bool residual;    /* part of the residual stream; else writer and reader determine the dtype */
    enum autocast_site writer, reader;
    enum recompute recomputed;     /* lowest level that includes it */
    bool read_once;                /* only its reader uses it, in both passes */
    enum scratch memory, gradient; /* SCRATCH_NONE: a buffer of its own; no gradient */
    bool gradient_in_place;
    size_t field;          /* offset in struct layer_activations or struct activations */
    size_t gradient_field; /* offset in struct activation_gradients */
};

extern const struct activation activation_table[ACTIVATIONS_AND_STATISTICS];

/* Return the tensor of an activation, or its gradient. `layer` is ignored for activations of the
 * whole model. */
struct tensor *activation_tensor(struct activations *all, enum activation_id id, int64_t layer);
struct tensor *activation_gradient(struct activations *all, enum activation_id id);

/* Returns the rows and columns of an activation for the batch of the shape in a layer, which
 * is ignored for activations of the whole model. Rows are 0 where it is absent. */
struct extent activation_extent(enum activation_id id, const struct model_shape *shape,
                                int64_t layer);
