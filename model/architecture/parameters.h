/* List of a model's parameters, derived from its sizes alone: names, shapes, and offsets in the
 * flat arrays that hold them.
 *
 *     | decayed: wte wpe, matrices of layer 0, 1, ... | not decayed: biases, norms | frozen |
 *     0                                                                      trained    count
 *
 * With adapters (model/architecture/adapters.h) these are all that is trained, and come first; the
 * base model is frozen. A model that only samples has no trained part: matrices of its layers are
 * marked as frozen where they are.
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

enum { ADAPTER_FUSED_MAX = 4 }; /* targets of one site */

/* Columns of LAYERS in ADAPTER_TARGETS. */
enum naming { NAMES_GPT2, NAMES_LLAMA, NAMES_UNGATED, NAMES_FUSED, NAMES_GRANITE4, NAMINGS };

struct model_shape {
#define X(size) int64_t size;
    MODEL_SIZES(X)
#undef X
#define X(type, part, ...) type part;
    MODEL_PARTS(X)
#undef X
    int64_t adapter_rank;     /* 0: no adapters */
    unsigned adapter_targets; /* bits 1 << enum adapter_target */
    bool weights_out_in;      /* layout of matrices: [out, in], else [in, out] as GPT-2's */
    bool llama_names;         /* Llama's names and parameters: q, k and v apart; else GPT-2's */
    bool is_delta; /* shape_of_layer: the layer is a Gated DeltaNet, else it has attention */
    int64_t padded_vocab;
    int64_t batch, sequence_length; /* B, T of the current batch */
    int64_t rows;                   /* B * T */
    int64_t logit_rows;             /* rows of logits that exist at a time */
};

/* Columns of q; of k or v; of q and k. */
static inline int64_t shape_q(const struct model_shape *s) {
    return s->n_head * s->head_dim;
}
static inline int64_t shape_kv(const struct model_shape *s) {
    return s->n_kv_head * s->head_dim;
}
static inline int64_t shape_qk(const struct model_shape *s) {
    return shape_q(s) + shape_kv(s);
}
/* Columns of keys, or of queries, and of values in a Gated DeltaNet; of queries, keys and values,
 * which a convolution reads; elements of a state, [value heads, key size, value size], and of those
 * that delta_rule_forward stores. */
static inline int64_t shape_keys(const struct model_shape *s) {
    return s->linear_num_key_heads * s->linear_key_head_dim;
}
static inline int64_t shape_values(const struct model_shape *s) {
    return s->linear_num_value_heads * s->linear_value_head_dim;
}
static inline int64_t shape_convolved(const struct model_shape *s) {
    return 2 * shape_keys(s) + shape_values(s);
}
static inline int64_t shape_state(const struct model_shape *s) {
    return s->linear_num_value_heads * s->linear_key_head_dim * s->linear_value_head_dim;
}
static inline int64_t shape_states(const struct model_shape *s) {
    return s->batch * ((s->sequence_length - 1) / DELTA_CHUNK) * shape_state(s);
}
/* Columns of the output of a layer's first matmul: q, k and v, or in a Gated DeltaNet what the
 * convolution reads, the gate z, b and a. shape_mixed is what its second matmul reads. */
static inline int64_t shape_qkv(const struct model_shape *s) {
    if (s->is_delta) return shape_convolved(s) + shape_values(s) + 2 * s->linear_num_value_heads;
    return shape_q(s) + 2 * shape_kv(s);
}
static inline int64_t shape_mixed(const struct model_shape *s) {
    return s->is_delta ? shape_values(s) : shape_q(s);
}
/* True if a gate multiplies what attention or a Gated DeltaNet computes. */
static inline bool shape_gates(const struct model_shape *s) {
    return s->attention_gate || s->is_delta;
}
/* Rows of q_proj, of which each head's gate follows its query; of all matrices that
 * read what it reads. */
static inline int64_t shape_q_gate(const struct model_shape *s) {
    return (s->attention_gate ? 2 : 1) * shape_q(s);
}
static inline int64_t shape_projected(const struct model_shape *s) {
    return shape_qkv(s) + shape_q_gate(s) - shape_q(s);
}
/* Returns the columns of a head that rope rotates. */
static inline int64_t shape_rotary(const struct model_shape *s) {
    const double part = s->partial_rotary_factor;
    return part > 0 ? (int64_t)((double)s->head_dim * part) : s->head_dim;
}
/* Columns of the output of the MLP's first matmul. */
static inline int64_t shape_hidden(const struct model_shape *s) {
    return (mlp_is_gated(s->mlp) ? 2 : 1) * s->n_inner;
}
/* True if the MLP has the names of Granite 4's. */
static inline bool is_granite4(const struct model_shape *s) {
    return s->fused == FUSED_MLP && s->attention_multiplier > 0;
}
/* True if the base model is frozen, since adapters are trained. */
static inline bool shape_has_adapters(const struct model_shape *s) {
    return s->adapter_rank > 0;
}

/* True if the layer of the shape has an adapter of this target. */
bool shape_has_target(const struct model_shape *shape, enum adapter_target target);

/* Returns the naming of a site's linear layers. */
enum naming site_naming(const struct model_shape *shape, enum autocast_site site);

/* Returns the attention window of a layer, or 0 if it attends to all keys. */
static inline int64_t shape_window(const struct model_shape *s, int64_t layer) {
    bool all =
        layer < s->window_from || (s->window_pattern > 0 && (layer + 1) % s->window_pattern == 0);
    return all ? 0 : s->window;
}

/* True if a layer rotates queries and keys. */
static inline bool shape_rotates(const struct model_shape *s, int64_t layer) {
    return s->positions == POSITIONS_ROPE &&
           (s->no_rope_interval == 0 || (layer + 1) % s->no_rope_interval != 0);
}

/* Returns the shape for lists of what a layer has. Layers repeat after shape_period ones, at most
 * n_layer. shape_attention_layers counts those before a layer that have attention. */
static inline struct model_shape shape_of_layer(const struct model_shape *s, int64_t layer) {
    struct model_shape own = *s;
    own.is_delta = s->full_attention_interval > 0 && (layer + 1) % s->full_attention_interval != 0;
    if (own.is_delta)
        own.qk_norm = own.qk_norm_whole = own.attention_gate = false; /* parts of attention */
    return own;
}
static inline int64_t shape_period(const struct model_shape *s) {
    const int64_t interval = s->full_attention_interval;
    return interval == 0 ? 1 : interval < s->n_layer ? interval : s->n_layer;
}
static inline int64_t shape_attention_layers(const struct model_shape *s, int64_t layer) {
    return s->full_attention_interval > 0 ? layer / s->full_attention_interval : layer;
}

/* True if operations between the QKV matmul and attention change values of q and k, or their
 * columns, and write the last of the gradient backward. */
static inline bool shape_prepares_heads(const struct model_shape *s) {
    return s->qk_norm || s->attention_gate || s->full_attention_interval > 0 ||
           s->positions == POSITIONS_ROPE;
}

/* Returns the number of layers that have the window. */
int64_t shape_window_layers(const struct model_shape *shape);

/* Returns what is added to the weights of norms. */
static inline float shape_weight_offset(const struct model_shape *s) {
    return s->norm_zero_centered ? 1.0f : 0.0f;
}

/* Number of means that a norm saves. */
static inline int64_t shape_means(const struct model_shape *s) {
    return s->norm == NORM_LAYERNORM ? s->rows : 0;
}

/* The shape of a parameter. */
struct extent {
    int64_t rows, columns; /* in files; columns 0: a vector; rows 0: absent from the model */
    int64_t padded_rows;   /* in memory */
    bool convolution;      /* files have [rows, 1, columns] */
    const char *rows_of, *columns_of; /* config keys that determine them */
};

/* A side of a parameter, and the config keys that determine it. GPT-2's heads share n_embd. */
struct side {
    int64_t size;
    const char *keys;
};

#define SIDE(size, keys) ((struct side){size, keys})
#define DIM_VOCAB        SIDE(s->vocab_size, "model.vocab_size")
#define DIM_POSITIONS    SIDE(s->n_positions, "model.n_positions")
#define DIM_EMBD         SIDE(s->n_embd, "model.n_embd")
#define DIM_INNER        SIDE(s->n_inner, "model.n_inner")
#define DIM_HIDDEN       SIDE(shape_hidden(s), "model.n_inner")
#define DIM_HEAD         SIDE(s->head_dim, "model.head_dim")
#define DIM_KV           SIDE(shape_kv(s), "model.n_kv_head or model.head_dim")
#define LINEAR_KEYS      "the model.linear_ keys"
#define DIM_CONVOLVED    SIDE(shape_convolved(s), LINEAR_KEYS)
#define DIM_VALUES       SIDE(shape_values(s), LINEAR_KEYS)
#define DIM_VALUE_HEADS  SIDE(s->linear_num_value_heads, "model.linear_num_value_heads")
#define DIM_QKV          SIDE(shape_projected(s), "model.n_embd")
#define DIM_Q            SIDE(shape_q(s), DIM_Q_KEYS)
#define DIM_Q_GATE       SIDE(shape_q_gate(s), DIM_Q_KEYS)
#define DIM_Q_KEYS       (s->llama_names ? "model.n_head or model.head_dim" : "model.n_embd")

static inline struct extent extent_of(struct side rows, struct side columns) {
    return (struct extent){.rows = rows.size,
                           .columns = columns.size,
                           .padded_rows = rows.size,
                           .rows_of = rows.keys,
                           .columns_of = columns.keys};
}

#define MATRIX(in, out)        (s->weights_out_in ? extent_of(out, in) : extent_of(in, out))
#define VECTOR(rows)           extent_of(rows, (struct side){0})
#define IF(condition, present) ((condition) ? (present) : (struct extent){0})
#define TABLE(rows, padded) \
    ((struct extent){(rows).size, s->n_embd, padded, false, (rows).keys, "model.n_embd"})
#define CONVOLUTION                                                                           \
    ((struct extent){shape_convolved(s), s->linear_conv_kernel_dim, shape_convolved(s), true, \
                     LINEAR_KEYS, "model.linear_conv_kernel_dim"})

#define INIT_ZERO        0.0f
#define INIT_ONE         (-1.0f)
#define INIT_LOG_UNIFORM (-2.0f) /* logarithms of a uniform distribution from 0.01 to 16 */
#define INIT_NORM(s)     ((s)->norm_zero_centered ? INIT_ZERO : INIT_ONE)

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
    const char *gguf; /* name in GGUF files, without the layer and ".weight" or ".bias" */
    int layer;        /* -1: of the whole model */
    size_t field;     /* offset in struct layer_parameters, or struct parameters */
    struct extent extent;
    int64_t offset;   /* index of the first element in the flat arrays */
    int64_t elements; /* including the padding before the next parameter */
    enum parameter_group group;
    enum autocast_site site;   /* operation that reads it */
    float init;                /* standard deviation, or INIT_ONE, INIT_ZERO, INIT_LOG_UNIFORM */
    bool gradient_from_matmul; /* its gradient is the result of a matmul */
    bool fused_with_previous;  /* operations read it as part of the previous one */
    bool adapter;              /* part of an adapter, not of the base model */
};

/* True for the matrices of a layer, without its adapters, which are small. They are contiguous in
 * the flat arrays, and alike in each layer unless some layers are Gated DeltaNets. */
static inline bool parameter_in_layer(const struct parameter *p) {
    return p->layer >= 0 && p->extent.columns > 0 && !p->adapter;
}

/* Returns an stb_ds array in the order of the flat arrays, and stores the number of elements of a
 * flat array in *count. The batch of the shape is ignored. */
struct parameter *parameter_list(const struct model_shape *shape, int64_t *count);

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
int64_t shape_parameter_count(const struct model_shape *shape);

/* Return the columns that the linear layer of a site reads, and those that it writes, in the layer
 * of the shape (shape_of_layer). */
int64_t site_inputs(const struct model_shape *shape, enum autocast_site site);
int64_t site_outputs(const struct model_shape *shape, enum autocast_site site);

/* Number of multiply-adds, for one row, by the matrices of the layer of the shape that the site
 * reads; AUTOCAST_SITE_COUNT: by all matrices of the layer. */
int64_t shape_layer_multiply_adds(const struct model_shape *shape, enum autocast_site site);
