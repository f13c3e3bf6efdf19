/* The activations of a model as tables: what each is called, who writes and reads it, and where it
 * lives. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tensor.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/parameters.h"

/* How much of their activations the layers share; a level includes those before it. The first
 * three are the words of train.recompute: what is shared is computed once more for the backward
 * pass, to the same bits. The last is for models that have no backward pass. */
enum sharing { SHARE_NOTHING, SHARE_GELU, SHARE_LAYER /* all but its input */, SHARE_ALL };

/* Activations in the order of the forward pass, then the statistics beside them. */
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
    int32_t *tokens, *targets; /* [B, T], backend memory */
};

struct activation {
    const char *name; /* in an audit */
    bool layered;     /* one in each layer */
    bool statistic;   /* a vector of fp32 */
    bool residual;    /* of the residual stream; else writer and reader decide on the dtype */
    enum autocast_site writer, reader;
    enum sharing shared;           /* from this level on */
    bool read_once;                /* by its reader alone, in both passes */
    enum scratch memory, gradient; /* SCRATCH_NONE: memory of its own, no gradient */
    bool gradient_in_place;
    size_t field;          /* offset in struct layer_activations or struct activations */
    size_t gradient_field; /* offset in struct activation_gradients */
};

extern const struct activation activation_table[ACTIVATIONS_AND_STATISTICS];

/* Returns the tensor of an activation, in that layer if it is one of a layer; or of its
 * gradient. */
struct tensor *activation_tensor(struct activations *all, enum activation_id id, int64_t layer);
struct tensor *activation_gradient(struct activations *all, enum activation_id id);

/* Rows and columns for the batch in place. */
struct extent activation_extent(enum activation_id id, const struct gpt_shape *shape);
