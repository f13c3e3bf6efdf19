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
enum gpt_use {
    GPT_TRAINING,   /* gradients, each layer's activations */
    GPT_EVALUATION, /* layers share their activations */
    GPT_SAMPLING,   /* like evaluation, for one sequence at a time; each layer saves the keys and
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

struct gpt {
    struct backend *be;
    struct gpt_shape shape;    /* with the current batch */
    struct gpt_shape capacity; /* with the largest batch, for which memory is planned */
    struct precision precision;
    /* True if the backward pass adds to the gradients of matrices, false if it replaces them, as in
     * the first micro-batch of a step. All other gradients are always added to. See
     * gpt_clear_gradients. */
    bool accumulate;
    bool backward_follows; /* set for a forward pass before gpt_backward, which streams activations
                            */
    bool last_micro_batch; /* the backward pass sends its gradients to other ranks */
    enum gpt_use use;
    enum recompute recompute;
    bool offload; /* the optimizer's state is in host memory */
    bool prefers; /* losses are those of pairs, by `rule` */
    struct preference_rule rule;
    bool isolates;  /* batches come with first keys, and with positions if these are learned */
    bool has_cache; /* keys and values are saved in `cache`, because layers share their qkv */

    struct {
        int64_t top; /* K, stored logits of the teacher for each token; 0: no distillation */
        float alpha, temperature;
    } distill;

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
    struct tensor unused_gradients;         /* gradients of frozen norms: written, never read */
    struct parameters weights;              /* as operations read them */
    struct parameters dweights;             /* gradients; rank 0: frozen */
    const struct tensor *head, *dhead;      /* the head's table: wte, or its own */
    struct tensor token_table;              /* master weights of wte, which the embedding reads */
    int16_t *token_remainder;    /* lower halves of token_table if it is split, else NULL */
    struct tensor angles;        /* fp32 [capacity's T, D], for rope: see struct rope_args */
    struct tensor window_angles; /* the same of layers with a window, or rank 0: no others */
    struct tensor cache;         /* [n_layer cache_rows, 2 H_kv D], if has_cache: k | v */
    int64_t cache_rows;          /* rows of a layer's cache: T of the capacity for each text */
    int64_t texts;               /* texts that are generated at once */
    void *added; /* backend memory for the rows of gpt_extend (model/core/forward.h) */
    struct activations activations;
    struct layer_stream saved; /* activations of the layers for the backward pass, in host memory */

    struct memory_plan memory;
    void *parameter_memory, *activation_memory; /* NULL until gpt_allocate */
    void *host_memory; /* offloaded remainders, and what is streamed, or NULL */
    size_t host_bytes;
};

/* Returns the attention window of a layer, or 0 if no row of the largest batch needs one. */
int64_t gpt_window(const struct gpt *gpt, int64_t layer);

/* Returns the angles of rope in a layer, or NULL without rope. */
const struct tensor *gpt_angles(const struct gpt *gpt, int64_t layer);

/* Returns the factor of attention scores, 0: that of the head size; and that of token embeddings,
 * 0: one. */
float gpt_attention_scale(const struct gpt *gpt);
float gpt_embedding_scale(const struct gpt *gpt);

/* Plans the model's memory and allocates only bookkeeping. The largest batch is
 * config->train.micro_batch_size (1 for sampling) times config->data.seq_len; models for sampling
 * have logits for gpt->texts rows. The caller keeps owning `be`. Fails if offloading is configured
 * without a GPU, or offload.weights for trained weights that are KEPT, or offload.gradients for
 * adapters, or if more texts than tokens of a sequence are to be sampled at once. The plan lacks
 * the moments, which optimizer_open adds, the batches, and the workspace, which is known after a
 * pass with the backend's plan table. */
int gpt_open(struct gpt *gpt, const struct config *config, const struct precision *precision,
             struct backend *be, enum gpt_use use, struct error *error);

/* Allocates the planned memory once the plan is complete. On failure the message gives the
 * sizes. */
int gpt_allocate(struct gpt *gpt, struct error *error);
void gpt_close(struct gpt *gpt);

/* Sets the shape of the batch, which has at most the rows of the capacity. Activations are laid out
 * anew in the same memory, so their values are lost. */
void gpt_set_batch(struct gpt *gpt, int64_t batch, int64_t sequence_length);

/* Prepares the gradients for a step. Clears those that are always accumulated; the next backward
 * pass replaces those of matrices, which saves clearing and reading them. */
void gpt_clear_gradients(struct gpt *gpt);

/* Returns the largest number of rows of gpt_extend. */
int64_t gpt_added_max(const struct gpt *gpt);

/* Returns the key-value cache of a layer for attention_decode: rows that end with k | v. */
struct tensor gpt_cache(const struct gpt *gpt, int64_t layer);

/* True if the gradients of a branch and of the residual stream are one tensor: they then have the
 * same dtype and, without dropout, the same values. */
bool gpt_branch_is_residual(const struct gpt *gpt);

/* True if the GELU of a layer may be part of the matmul before it, which a recomputation then
 * repeats: a library may apply it to the sum before rounding. */
static inline bool gpt_gelu_is_fused(const struct gpt_shape *shape,
                                     const struct precision *precision, const struct backend *be,
                                     int64_t layer) {
    bool scaled =
        precision_quantizes_forward(precision, SITE_MLP_FC, layer) && precision->recipe.scaled;
    return !mlp_is_gated(shape->mlp) && !be->device.gelu_of_stored &&
           !shape_adapts(shape, SITE_MLP_FC) && !scaled;
}

/* Returns the function of a gated MLP's gate. */
static inline enum gate_function gpt_gate(const struct gpt_shape *shape) {
    return shape->mlp == MLP_GEGLU ? GATE_GELU : GATE_SILU;
}

/* Returns the gradients of elements first .. first + count of the flat order, all of the layers or
 * none: between steps and in an update, those that are streamed are in host memory. */
struct tensor gpt_gradients(const struct gpt *gpt, int64_t first, int64_t count);

/* Returns a parameter's gradient there, without padding rows. */
struct tensor gpt_gradient(const struct gpt *gpt, const struct parameter *parameter);
