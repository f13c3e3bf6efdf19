/* The model: its shape, its parameters, its activations, and the memory they live in.
 *
 * Parameters lie in flat arrays of one layout: fp32 masters, Adam's two moments, gradients, and
 * the 16-bit copy that the lower operations read. Element i of each belongs together, so a pass
 * over all parameters is a pass over arrays.
 *
 *     | decayed: wte wpe, matrices of layer 0, 1, ... | not decayed: biases and layer norms |
 *     0                                          decayed                               count
 *
 * Each parameter starts at a multiple of PARAMETER_ALIGNMENT elements; the gaps stay zero. */
#ifndef MODEL_GPT_H
#define MODEL_GPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/parameter_list.h"
#include "model/precision.h"
#include "model/tensors.h"

#define TENSOR_FIELD_PARAMETER(field, name, rows, columns, operation, decay, init) \
    struct tensor field;
#define TENSOR_FIELD_ACTIVATION(field, dtype, rows, columns)               struct tensor field;
#define TENSOR_FIELD_LAYER_ACTIVATION(field, dtype, rows, columns, shared) struct tensor field;

struct layer_parameters {
    LAYER_PARAMETERS(TENSOR_FIELD_PARAMETER)
};

struct parameters {
    MODEL_PARAMETERS(TENSOR_FIELD_PARAMETER)
    struct layer_parameters *layers; /* [n_layer] */
};

struct layer_activations {
    LAYER_ACTIVATIONS(TENSOR_FIELD_LAYER_ACTIVATION)
};

struct activations {
    MODEL_ACTIVATIONS(TENSOR_FIELD_ACTIVATION)
    BACKWARD_ACTIVATIONS(TENSOR_FIELD_ACTIVATION)
    struct layer_activations *layers; /* [n_layer] */
    int32_t *tokens, *targets;        /* [B, T], backend memory */
};

/* Bytes of each part of memory. */
struct memory_plan {
    size_t master, lower, gradients, moments, activations;
    size_t batches, workspace; /* of a trainer; those of other uses are not planned */
    size_t library;            /* of the library of products itself; an estimate */
    size_t total;
};

/* What a model is opened for, and so what memory it has. */
enum gpt_use {
    GPT_TRAINING,   /* gradients, moments, each layer's activations */
    GPT_EVALUATION, /* layers share their activations */
    GPT_SAMPLING,   /* the same, of one sequence, but each layer keeps its keys and values */
};

/* How much of their activations the layers share; a level includes those before it. The first
 * three are the words of train.recompute: what is shared is computed once more for the backward
 * pass, to the same bits. The last is for models that have no backward pass. */
enum sharing {
    SHARE_NOTHING = CONFIG_RECOMPUTE_NONE,
    SHARE_GELU = CONFIG_RECOMPUTE_GELU,
    SHARE_LAYER = CONFIG_RECOMPUTE_LAYER, /* all but the input of each layer */
    SHARE_ALL,
};

struct gpt {
    struct backend *be;
    struct gpt_shape shape;    /* with the batch in place now */
    struct gpt_shape capacity; /* with the largest batch there is memory for */
    struct precision precision;
    /* Whether the backward pass adds to the gradients of matrices or replaces them, as the first
     * micro-batch of a step does; everything else is always added to. See gpt_clear_gradients. */
    bool accumulate;
    enum gpt_use use;
    enum sharing sharing;
    bool has_cache; /* layers that share their qkv have keys and values of one sequence of their
                     * own, in place while the batch is one sequence */

    struct parameter *list; /* stb_ds array, in the order of the flat arrays */
    int64_t count, decayed; /* elements of a flat array, and of its decayed part */

    struct tensor master, lower, gradients, moment1, moment2; /* [count]; lower only in 16 bit */
    struct parameters weights;  /* what operations read: lower, or master for fp32 operations */
    struct parameters masters;  /* the fp32 truth */
    struct parameters dweights; /* gradients */
    struct activations activations;

    struct memory_plan memory;
    void *parameter_memory, *activation_memory; /* NULL until gpt_allocate */
};

/* Lays the model out and measures it; allocates only bookkeeping. The largest batch is
 * config->train.micro_batch_size (1 for sampling) times config->data.seq_len; models for sampling
 * have logits for one row. `be` stays the caller's. The plan lacks the workspace, which is known
 * after a walk with the backend's plan table, and the batches. */
int gpt_open(struct gpt *gpt, const struct config *config, const struct precision *precision,
             struct backend *be, enum gpt_use use, char *error);

/* Allocates what was measured. On failure says how much of what there was no memory for. */
int gpt_allocate(struct gpt *gpt, char *error);
void gpt_close(struct gpt *gpt);

/* Puts a batch of another shape in place: at most the capacity in rows. Activations are carved
 * anew from the same memory, so what they held is lost. */
void gpt_set_batch(struct gpt *gpt, int64_t batch, int64_t sequence_length);

/* Fills masters with the initial weights of GPT-2, a pure function of the seed, and refreshes the
 * lower copy. Moments and gradients become zero. */
void gpt_initialize(struct gpt *gpt, uint64_t seed);

/* Begins a step's gradients: clears those that are only ever added to, and has the next backward
 * pass replace those of matrices, which saves writing and reading them once. */
void gpt_clear_gradients(struct gpt *gpt);

/* Rounds the masters into the lower copy; after anyone else wrote them. */
void gpt_refresh_lower(struct gpt *gpt);

/* Parameters as people count them, without padding. */
int64_t gpt_parameter_count(const struct gpt *gpt);

/* The block of memory a parameter occupies in a flat array, without padding rows. */
struct tensor gpt_parameter_view(const struct tensor *flat, const struct parameter *parameter);

#endif
