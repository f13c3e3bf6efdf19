/* The model: its shape, parameters and activations, and their memory.
 *
 * Parameters have one flat order (model/architecture/parameters.h), which gradients, master weights
 * (model/core/masters.h) and moments share; gradients and moments end where frozen parameters
 * begin. Element i of each array belongs to the same parameter element, so an operation on all
 * parameters is a loop over arrays. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/architecture/activations.h"
#include "model/architecture/parameters.h"
#include "model/core/adapter_memory.h"
#include "model/core/dropout.h"
#include "model/core/gradient_stream.h"
#include "model/core/masters.h"
#include "model/core/memory_parts.h"
#include "model/core/precision.h"
#include "model/core/quantization.h"

/* Purpose of a model, which determines its memory. */
enum model_purpose {
    PURPOSE_TRAINING,   /* gradients, each layer's activations */
    PURPOSE_EVALUATION, /* layers share their activations */
    PURPOSE_SAMPLING, /* like evaluation, for one sequence at a time; each layer saves the keys and
                       * values of config->samples texts */
};

/* Trace label of an operation: up to two activations, or their gradients, and the rows that it
 * writes. */
struct trace_label {
    int count;
    bool gradient;
    struct {
        enum activation_id id;
        int layer; /* 0 for activations of the whole model */
    } tensors[2];
    int64_t first_row, rows;
};

struct exchange;

struct model {
    struct backend *be;
    struct model_shape shape;    /* with the current batch */
    struct model_shape capacity; /* with the largest batch, for which memory is planned */
    struct precision precision;
    enum model_purpose purpose;
    enum recompute recompute;
    bool offload_optimizer; /* the optimizer's state is in host memory */
    bool has_cache; /* keys and values are saved in `cache`, because layers share their qkv */

    struct parameter *list; /* stb_ds array, in the order of the flat arrays */
    int64_t count;          /* elements of a flat array */
    int64_t trained_count;  /* elements that are trained, which come first: gradients and moments
                             * have only these */

    struct exchange *exchange; /* with other ranks (model/core/exchange.h), or NULL */
    struct masters masters;
    struct quantization quantization; /* operands of linear layers in 8 or 4 bits */
    struct adapters adapters;
    struct dropout dropout;
    char base_fingerprint[65]; /* with adapters: of the files of the frozen model, or "" */
    struct tensor gradients;   /* [trained_count], without those that are streamed */
    struct gradient_stream gradient_stream; /* those of the layers, in host memory */
    struct tensor unused_gradients;         /* of frozen norms and convolutions: never read */
    struct parameters weights;              /* as operations read them */
    struct parameters dweights;             /* gradients; rank 0: frozen */
    const struct tensor *head, *dhead;      /* the head's table: wte, or its own */
    struct tensor token_table;              /* master weights of wte, which the embedding reads */
    int16_t *token_remainder;    /* lower halves of token_table if it is split, else NULL */
    struct tensor angles;        /* fp32 [capacity's T, columns of a head that rotate] */
    struct tensor window_angles; /* the same of layers with a window, or rank 0: no others */
    struct tensor query_angles;  /* the same of queries, times their scale, or rank 0 */
    struct tensor cache;  /* [layers cache_rows, 2 H_kv D], if has_cache: k | v, in the layers
                           * with attention */
    struct tensor states; /* fp32 [layers texts, state], of the Gated DeltaNets */
    struct tensor tails;  /* [layers texts, (K - 1) columns], what their convolution read last */
    int64_t cache_rows;   /* rows of a layer's cache: T of the capacity for each text */
    int64_t texts;        /* texts that are generated at once */
    struct activations activations;
    struct layer_stream saved; /* activations of the layers for the backward pass, in host memory */

    struct memory_plan memory;
    void *parameter_memory, *activation_memory; /* NULL until model_allocate */
    void *host_memory; /* offloaded remainders, and what is streamed, or NULL */
    size_t host_bytes;
};

/* Returns the attention window of a layer, or 0 if no row of the largest batch needs one. */
int64_t model_window(const struct model *model, int64_t layer);

/* Returns the angles of rope in a layer, or NULL if it has no rope. */
const struct tensor *model_angles(const struct model *model, int64_t layer);

/* Return the factor of attention scores, and that of token embeddings. */
double model_attention_scale(const struct model *model);
float model_embedding_scale(const struct model *model);

/* Plans the model's memory and allocates only bookkeeping. The largest batch is
 * config->train.micro_batch_size (1 for sampling) times config->data.seq_len; models for sampling
 * have logits for model->texts rows. The caller keeps owning `be`. Fails if offloading is
 * configured without a GPU, or offload.weights for trained weights that are KEPT, or
 * offload.gradients for adapters, or if more texts than tokens of a sequence are to be sampled at
 * once. The plan lacks the moments, which optimizer_open adds, the batches, and the workspace,
 * which is known after a pass with the backend's plan table. */
int model_open(struct model *model, const struct config *config, const struct precision *precision,
               struct backend *be, enum model_purpose purpose, struct error *error);

/* Allocates the planned memory once the plan is complete. On failure the message gives the
 * sizes. */
int model_allocate(struct model *model, struct error *error);
void model_close(struct model *model);

/* Sets the shape of the batch, which has at most the rows of the capacity, as a forward pass does.
 * Activations are laid out anew in the same memory, so their values are lost. */
void model_set_batch(struct model *model, int64_t batch, int64_t sequence_length);

/* Clears the gradients that every micro-batch of a step adds to. The backward pass of the first one
 * replaces those of matrices, which saves clearing and reading them. */
void model_clear_gradients(struct model *model);

/* Returns the largest number of rows of PASS_EXTEND (model/pass/pass.h). */
int64_t model_added_max(const struct model *model);

/* Returns the states, or tails, of texts from `text` on in a Gated DeltaNet: `all` is one of these
 * two arrays of the model. */
struct tensor model_state(const struct model *model, const struct tensor *all, int64_t layer,
                          int64_t text, int64_t texts);

/* Copies what the cache has of a text to another one: its first `rows` rows of keys and values, if
 * each text has those of its own place (text * T of the capacity), and its states. */
void model_copy_text(const struct model *model, int64_t from, int64_t to, int64_t rows);

/* Gives the gradients of activations the shapes that their tensors have in a layer. */
void model_set_gradients(struct model *model, int64_t layer);

/* Returns the key-value cache of a layer for attention_decode: rows that end with k | v. */
struct tensor model_cache(const struct model *model, int64_t layer);

/* True if elements of a branch are dropped in training, or have a factor, before the branch is
 * added to the residual stream. */
static inline bool model_scales_branches(const struct model *model) {
    return model->dropout.residual > 0 || model->shape.residual_multiplier > 0;
}

/* True if the gradients of a branch and of the residual stream are one tensor: they then have the
 * same dtype and, unless the branch is scaled, the same values. */
bool model_branch_is_residual(const struct model *model);

/* True if the GELU of a layer may be part of the matmul before it, which a recomputation then
 * repeats: a library may apply it to the sum before rounding. */
static inline bool model_gelu_is_fused(const struct model_shape *shape,
                                       const struct precision *precision, const struct backend *be,
                                       int64_t layer) {
    bool scaled =
        precision_quantizes_forward(precision, SITE_MLP_FC, layer) && precision->recipe.scaled;
    return shape->mlp == MLP_GELU && !be->device.gelu_of_stored &&
           !shape_adapts(shape, SITE_MLP_FC) && !scaled;
}

/* Returns the function of a gated MLP's gate. */
static inline enum gate_function model_gate(const struct model_shape *shape) {
    return shape->mlp == MLP_GEGLU ? GATE_GELU : GATE_SILU;
}

/* Returns the gradients of elements first .. first + count of the flat order, all of the layers or
 * none: between steps and in an update, those that are streamed are in host memory. */
struct tensor model_gradients(const struct model *model, int64_t first, int64_t count);

/* Returns a parameter's gradient there, without padding rows. */
struct tensor model_gradient(const struct model *model, const struct parameter *parameter);
