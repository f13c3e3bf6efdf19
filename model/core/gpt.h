/* The model: its shape, its parameters, its activations, and the memory they live in.
 *
 * Parameters have one flat order (model/architecture/parameters.h), in which gradients, masters
 * (model/core/masters.h) and moments lie: element i of each belongs together, so a pass over all
 * parameters is a pass over arrays. */
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
#include "model/core/masters.h"
#include "model/core/memory_parts.h"
#include "model/core/precision.h"
#include "model/core/quantization.h"

/* Purpose of a model, which decides what memory it has. */
enum gpt_use {
    GPT_TRAINING,   /* gradients, each layer's activations */
    GPT_EVALUATION, /* layers share their activations */
    GPT_SAMPLING,   /* the same, of one sequence, but each layer keeps its keys and values */
};

/* Label of an operation: up to two activations that it writes, or their gradients, and which of
 * their rows. */
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
    struct gpt_shape shape;    /* with the batch in place now */
    struct gpt_shape capacity; /* with the largest batch there is memory for */
    struct precision precision;
    /* True if the backward pass adds to the gradients of matrices, false if it replaces them, as in
     * the first micro-batch of a step. All other gradients are always added to. See
     * gpt_clear_gradients. */
    bool accumulate;
    bool
        last_micro_batch; /* the backward pass is the last of a step: gradients go to other ranks */
    enum gpt_use use;
    enum sharing sharing;
    bool offload;   /* the optimizer's state is in memory of the host */
    bool has_cache; /* since layers share their qkv, keys and values of a sequence are kept apart */

    struct parameter *list; /* stb_ds array, in the order of the flat arrays */
    int64_t count;          /* elements of a flat array */

    struct exchange *exchange; /* with other ranks; NULL: there is none (model/core/exchange.h) */
    struct masters masters;
    struct quantization quantization;  /* of fp8 */
    struct tensor gradients;           /* [count] */
    struct parameters weights;         /* what operations read */
    struct parameters dweights;        /* gradients */
    const struct tensor *head, *dhead; /* of weights and gradients: wte, or a table of its own */
    struct tensor token_table; /* wte's masters, which the embedding reads, and what belongs to */
    int16_t *token_remainder;  /* them if they are split, else NULL */
    struct tensor angles;      /* fp32 [capacity's T, D], for rope: see struct rope_args */
    struct tensor cache;       /* [n_layer T, 2 H_kv D] with capacity's T, if has_cache: k | v */
    struct activations activations;

    struct memory_plan memory;
    void *parameter_memory, *activation_memory; /* NULL until gpt_allocate */
    void *host_memory;                          /* remainders that are offloaded, or NULL */
    size_t remainder_bytes;
};

/* Lays the model out and measures it; allocates only bookkeeping. The largest batch is
 * config->train.micro_batch_size (1 for sampling) times config->data.seq_len; models for sampling
 * have logits for one row. `be` stays the caller's. Fails where there
 * is nothing to offload to. The plan lacks the moments, which optimizer_open adds, the workspace,
 * which is known after a walk with the backend's plan table, and the batches.
 */
int gpt_open(struct gpt *gpt, const struct config *config, const struct precision *precision,
             struct backend *be, enum gpt_use use, struct error *error);

/* Allocates what was measured, once the plan is complete. On failure says how much of what there
 * was no memory for. */
int gpt_allocate(struct gpt *gpt, struct error *error);
void gpt_close(struct gpt *gpt);

/* Puts a batch of another shape in place: at most the capacity in rows. Activations are carved
 * anew from the same memory, so what they held is lost. */
void gpt_set_batch(struct gpt *gpt, int64_t batch, int64_t sequence_length);

/* Fills masters with the initial weights of GPT-2, a pure function of the seed: the same bits on
 * any machine, with any number of threads. */
void gpt_initialize(struct gpt *gpt, uint64_t seed);

/* Begins a step's gradients: clears those that are only ever added to, and has the next backward
 * pass replace those of matrices, which saves writing and reading them once. */
void gpt_clear_gradients(struct gpt *gpt);

/* Returns the key-value cache of a layer for attention_decode: [T, ...], rows that end with k |
 * v. */
struct tensor gpt_cache(const struct gpt *gpt, int64_t layer);

/* Returns a parameter's part of a flat array, without padding rows. */
struct tensor gpt_parameter_view(const struct tensor *flat, const struct parameter *parameter);
