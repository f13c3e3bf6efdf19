/* The parameters of a model, listed from its sizes alone: names, shapes, and places in the flat
 * arrays that hold them.
 *
 *     | decayed: wte wpe, matrices of layer 0, 1, ... | not decayed: biases and layer norms |
 *     0                                                                                count
 *
 * Each parameter starts at a multiple of PARAMETER_ALIGNMENT elements, but for those that are
 * joined to the one before (as k to q); the gaps stay zero. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tensor.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/parts.h"

enum {
    PARAMETER_ALIGNMENT = 128, /* elements: 256 bytes in 16 bit */
    VOCAB_ALIGNMENT = 128,     /* rows that the embedding is padded to, inside only */
};

struct gpt_shape {
#define X(size) int64_t size;
    MODEL_SIZES(X)
#undef X
#define X(type, part) type part;
    MODEL_PARTS(X)
#undef X
    bool weights_out_in; /* matrices lie [out, in], as Llama's files have them, else [in, out] as
                            GPT-2's */
    int64_t padded_vocab;
    int64_t batch, sequence_length; /* B, T of the activations in place */
    int64_t rows;                   /* B * T */
    int64_t logit_rows;             /* rows of logits that exist at a time */
};

/* Columns of q alone, of k or v, of q and k, of a row of q, k and v; those that the first product
 * of an MLP has; and how many means the norms keep. */
static inline int64_t shape_q(const struct gpt_shape *s) {
    return s->n_head * s->head_dim;
}
static inline int64_t shape_kv(const struct gpt_shape *s) {
    return s->n_kv_head * s->head_dim;
}
static inline int64_t shape_qk(const struct gpt_shape *s) {
    return shape_q(s) + shape_kv(s);
}
static inline int64_t shape_qkv(const struct gpt_shape *s) {
    return shape_q(s) + 2 * shape_kv(s);
}
static inline int64_t shape_hidden(const struct gpt_shape *s) {
    return (mlp_is_gated(s->mlp) ? 2 : 1) * s->n_inner;
}
static inline int64_t shape_means(const struct gpt_shape *s) {
    return s->norm == NORM_LAYERNORM ? s->rows : 0;
}

/* True if all its parts are those of GPT-2, so that its files are those of a GPT-2. */
bool shape_is_gpt2(const struct gpt_shape *shape);

/* True if all its parts are those of a Llama, Mistral or Qwen. */
bool shape_is_llama(const struct gpt_shape *shape);

/* The shape of a parameter. */
struct extent {
    int64_t rows, columns; /* in files; columns 0: a vector; rows 0: the model has it not */
    int64_t padded_rows;   /* in memory */
    const char *rows_of;   /* the key of the config that the rows come from */
};

#define ROWS(rows, columns)                   ((struct extent){rows, columns, rows, "model.n_embd"})
#define MATRIX(in, out)                       (s->weights_out_in ? ROWS(out, in) : ROWS(in, out))
#define VECTOR(count)                         ROWS(count, 0)
#define TABLE(padded, in_files, columns, key) ((struct extent){in_files, columns, padded, key})
#define IF(condition, there)                  ((condition) ? (there) : (struct extent){0, 0, 0, ""})

#define INIT_ZERO 0.0f
#define INIT_ONE  (-1.0f)

/* One tensor for each parameter. */
#define X(field, ...) struct tensor field;
struct layer_parameters {
    LAYER_PARAMETERS(X)
};
struct parameters {
    MODEL_PARAMETERS(X)
    struct layer_parameters *layers; /* [n_layer] */
};
#undef X

/* One parameter as checkpoints, initialization and the optimizer see it. */
struct parameter {
    char name[64];    /* Hugging Face name, without "transformer." */
    const char *kind; /* the same without the layer */
    int layer;        /* -1: of the whole model */
    size_t field;     /* offset in struct layer_parameters, or struct parameters */
    struct extent extent;
    int64_t offset;   /* first element in the flat arrays */
    int64_t elements; /* up to the next one */
    bool decay;
    enum autocast_site site;  /* that reads it */
    float init;               /* standard deviation, or INIT_ONE, INIT_ZERO */
    bool from_product;        /* its gradient is the result of a matrix product */
    bool fused_with_previous; /* operations see it as a part of the one before */
};

/* An stb_ds array in the order of the flat arrays. Stores how many elements a flat array has. Of
 * the shape the sizes without the batch are read. */
struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count);

/* The token embedding in a list, and what the head reads: the same, or a table of its own. */
const struct parameter *parameter_wte(const struct parameter *list);
const struct parameter *parameter_head(const struct parameter *list);

/* Elements that a parameter has in files. */
int64_t parameter_count(const struct parameter *parameter);

/* Returns a parameter's field of `parameters`. */
struct tensor *parameter_tensor(struct parameters *parameters, const struct parameter *parameter);

/* Elements of all parameters as people count them, without padding. */
int64_t shape_parameter_count(const struct gpt_shape *shape);

/* Multiplications of the matrices of one layer that the site reads, for one row; of a layer's in
 * all for AUTOCAST_SITE_COUNT. */
int64_t shape_layer_products(const struct gpt_shape *shape, enum autocast_site site);
