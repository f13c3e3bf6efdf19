/* List of a model's parameters, derived from its sizes alone: names, shapes, and offsets in the
 * flat arrays that hold them.
 *
 *     | decayed: wte wpe, matrices of layer 0, 1, ... | not decayed: biases, norms | frozen |
 *     0                                                                      trained    count
 *
 * With adapters (model/architecture/adapters.h) these are all that is trained, and come first; the
 * base model is frozen.
 *
 * Each parameter starts at a multiple of PARAMETER_ALIGNMENT elements, except those fused with the
 * previous one (as k with q). The gaps stay zero. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/tensor.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/parts.h"

enum {
    PARAMETER_ALIGNMENT = 128, /* elements: 256 bytes in 16 bit */
    VOCAB_ALIGNMENT = 128,     /* multiple to which rows of the embedding are padded in memory */
};

/* Linear layers that can have an adapter: see model/architecture/adapters.h. */
enum adapter_target {
#define X(NAME, ...) ADAPTER_##NAME,
    ADAPTER_TARGETS(X)
#undef X
        ADAPTER_TARGET_COUNT
};

enum { ADAPTER_FUSED_MAX = 3 }; /* targets of one site */

struct gpt_shape {
#define X(size) int64_t size;
    MODEL_SIZES(X)
#undef X
#define X(type, part) type part;
    MODEL_PARTS(X)
#undef X
    int64_t adapter_rank;     /* 0: no adapters */
    unsigned adapter_targets; /* bits 1 << enum adapter_target */
    bool weights_out_in; /* layout of matrices: [out, in] as in Llama's files, else [in, out] as in
                          * GPT-2's */
    int64_t padded_vocab;
    int64_t batch, sequence_length; /* B, T of the current batch */
    int64_t rows;                   /* B * T */
    int64_t logit_rows;             /* rows of logits that exist at a time */
};

/* Columns of q; of k or v; of q and k; of q, k and v; of the output of the MLP's first matmul.
 * shape_means is the number of means that a norm saves. */
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
/* True if the base model is frozen, since adapters are trained. */
static inline bool shape_has_adapters(const struct gpt_shape *s) {
    return s->adapter_rank > 0;
}

/* Returns the attention window of a layer, or 0 if it attends to all keys. */
static inline int64_t shape_window(const struct gpt_shape *s, int64_t layer) {
    bool all =
        layer < s->window_from || (s->window_pattern > 0 && (layer + 1) % s->window_pattern == 0);
    return all ? 0 : s->window;
}

/* Returns the number of layers that have the window. */
int64_t shape_window_layers(const struct gpt_shape *shape);

/* Returns what is added to the weights of norms. */
static inline float shape_weight_offset(const struct gpt_shape *s) {
    return s->norm_zero_centered ? 1.0f : 0.0f;
}

static inline int64_t shape_means(const struct gpt_shape *s) {
    return s->norm == NORM_LAYERNORM ? s->rows : 0;
}

/* True if all parts but a window are GPT-2's, so that the parameters are those of GPT-2's format.
 */
bool shape_is_gpt2(const struct gpt_shape *shape);

/* True if all parts, the windows included, are those of a Llama, Mistral or Qwen. */
bool shape_is_llama(const struct gpt_shape *shape);

/* The same for Gemma 2 and, with norms of q and k, Gemma 3. */
bool shape_is_gemma(const struct gpt_shape *shape);

/* The shape of a parameter. */
struct extent {
    int64_t rows, columns; /* in files; columns 0: a vector; rows 0: absent from the model */
    int64_t padded_rows;   /* in memory */
    const char *rows_of;   /* config key that determines the rows */
};

#define ROWS(rows, columns)                   ((struct extent){rows, columns, rows, "model.n_embd"})
#define MATRIX(in, out)                       (s->weights_out_in ? ROWS(out, in) : ROWS(in, out))
#define VECTOR(count)                         ROWS(count, 0)
#define TABLE(padded, in_files, columns, key) ((struct extent){in_files, columns, padded, key})
#define IF(condition, present)                ((condition) ? (present) : (struct extent){0, 0, 0, ""})

#define INIT_ZERO    0.0f
#define INIT_ONE     (-1.0f)
#define INIT_NORM(s) ((s)->norm_zero_centered ? INIT_ZERO : INIT_ONE)

/* One tensor for each parameter. */
#define X(field, ...) struct tensor field;
struct layer_parameters {
    LAYER_PARAMETERS(X)
    /* A of the first target of a site has the rows of all targets of the site. */
    struct tensor lora_a[ADAPTER_TARGET_COUNT]; /* [rank, inputs] */
    struct tensor lora_b[ADAPTER_TARGET_COUNT]; /* [outputs, rank] */
};
struct parameters {
    MODEL_PARAMETERS(X)
    struct layer_parameters *layers; /* [n_layer] */
};
#undef X

/* Groups are contiguous in the flat arrays, in this order. */
enum parameter_group {
    GROUP_DECAYED, /* weight decay applies, as usual to matrices only */
    GROUP_NOT_DECAYED,
    GROUP_FROZEN, /* not trained: no gradient and no moments */
    PARAMETER_GROUPS
};

/* One parameter, for checkpoints, initialization and the optimizer. */
struct parameter {
    char name[64];    /* Hugging Face name, without "transformer." */
    const char *kind; /* the same without the layer */
    int layer;        /* -1: of the whole model */
    size_t field;     /* offset in struct layer_parameters, or struct parameters */
    struct extent extent;
    int64_t offset;   /* index of the first element in the flat arrays */
    int64_t elements; /* including the padding before the next parameter */
    enum parameter_group group;
    enum autocast_site site;   /* operation that reads it */
    float init;                /* standard deviation, or INIT_ONE, INIT_ZERO */
    bool gradient_from_matmul; /* its gradient is the result of a matmul */
    bool fused_with_previous;  /* operations read it as part of the previous one */
    bool adapter;              /* part of an adapter, not of the base model */
};

/* True for the matrices of a layer, without its adapters, which are small. They are contiguous in
 * the flat arrays, and alike in each layer. */
static inline bool parameter_in_layer(const struct parameter *p) {
    return p->layer >= 0 && p->extent.columns > 0 && !p->adapter;
}

/* Returns an stb_ds array in the order of the flat arrays, and stores the number of elements of a
 * flat array in *count. The batch of the shape is ignored. */
struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count);

/* Returns the number of parameters of a list that are trained. They come first. */
ptrdiff_t parameter_trained_count(const struct parameter *list);

/* Returns the number of parameters of adapters in a list. They come first; the base model follows.
 */
ptrdiff_t parameter_adapter_count(const struct parameter *list);

/* Return the token embedding of a list, and the table that the head reads: the same, or one of its
 * own. */
const struct parameter *parameter_wte(const struct parameter *list);
const struct parameter *parameter_head(const struct parameter *list);

/* Number of elements of a parameter in files. */
int64_t parameter_count(const struct parameter *parameter);

/* Returns the tensor, or NULL if its rank is 0, as for a bias that the model lacks. */
static inline const struct tensor *optional_tensor(const struct tensor *tensor) {
    return tensor->rank ? tensor : NULL;
}

/* Returns a parameter's field of `parameters`. */
struct tensor *parameter_tensor(struct parameters *parameters, const struct parameter *parameter);

/* Number of elements of all parameters of the base model, without padding. */
int64_t shape_parameter_count(const struct gpt_shape *shape);

/* Return the columns that the linear layer of a site reads, and those that it writes. */
int64_t site_inputs(const struct gpt_shape *shape, enum autocast_site site);
int64_t site_outputs(const struct gpt_shape *shape, enum autocast_site site);

/* Number of multiply-adds, for one row, by the matrices of one layer that the site reads;
 * AUTOCAST_SITE_COUNT: by all matrices of the layer. */
int64_t shape_layer_multiply_adds(const struct gpt_shape *shape, enum autocast_site site);
