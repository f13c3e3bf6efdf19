/* The forward pass: tokens of the batch -> activations.lnf_out, and the head after it.
 *
 * With x the residual stream, a layer is
 *     x += attention_projection(attention(qkv(norm(x))))
 *     x += mlp_projection(gelu(mlp_fc(norm(x))))
 * and each addition is fused into the norm that follows it. The shape determines the kinds of norm
 * and gelu, and whether q and k are rotated (rope): model/architecture/parts.h. */
#pragma once

#include "model/pass/pass.h"

/* Runs all layers, on the rows of the pass from pass_first_row on. The cache of PASS_PREFILL and
 * PASS_EXTEND exists in models for sampling, and in models for training if the config enables
 * sampling; without train.recompute "layer" and offload.activations it is the activations' qkv, and
 * the cache_row of PASS_PREFILL is 0. */
void model_forward(const struct pass *pass);

/* Recomputes the activations that a layer shares with others, bit for bit the same (see
 * model->recompute). Call it after model_forward, from the last layer, whose activations are still
 * valid, to the first. */
void model_recompute(const struct pass *pass, int64_t layer);

/* The output of a QKV matmul with gates: for each head D columns of q and D of its gate, then k and
 * v; and its parts, or the gradients of these. */
struct gate_columns {
    const struct tensor *whole;     /* [N, (2 H + 2 H_kv) D] */
    const struct tensor *qkv;       /* [N, (H + 2 H_kv) D] */
    const struct tensor *gate;      /* [N, H D] */
    struct trace_label whole_label; /* of joined parts */
    struct trace_label qkv_label, gate_label;
};

/* Copies the parts from the whole, or into it. */
void model_split_gates(const struct model *model, const struct gate_columns *columns, bool join);

/* The gate of a layer for which shape_gates is true: gated = function(gate) * in. */
struct mixer_gate {
    enum activation_id gate, in;
    int64_t column; /* first of the gate */
    enum gate_function function;
};
struct mixer_gate model_mixer_gate(const struct model *model, int64_t layer);

/* Computes the activation gated, which layers share: the backward pass calls it again with
 * PASS_RECOMPUTE. */
void model_gate_mixed(const struct pass *pass, int64_t layer);

/* A chunk of rows of the head, and where they are in arrays of all rows: from row `first` on, or if
 * places is given, row i in place first + places[i], where first is 0; negative: nowhere. */
struct head_chunk {
    struct tensor logits; /* [rows, V padded] */
    int64_t first;
    const int32_t *places;           /* [rows], or NULL */
    const struct trace_label *label; /* of the gradients */
};

/* Arguments of a run of the head over the rows of a batch. */
struct head_args {
    bool has_gradients;   /* logits are replaced by their gradients */
    bool has_logits;      /* the run before has computed the logits, and head_is_one_chunk */
    const float *weights; /* [N] of the losses, or NULL */
    float *losses;        /* [N]; 0 where the target does not count */
    /* Optional, in place of the cross entropy: writes the losses of the chunk's rows and, in
     * PASS_TRAIN, replaces their logits by the gradients. */
    void (*op)(const struct pass *pass, const struct head_chunk *chunk);
};

/* Computes logits a chunk of rows at a time, and the cross entropy of each row. With gradients each
 * chunk of logits is replaced by its own, from which activations.gradients.lnf_out and the gradient
 * of the head's weights are computed. If the batch has `counted`, these rows alone are read, from
 * copies that lie together. */
void model_head(const struct pass *pass, const struct head_args *args);

/* True if one chunk has all rows of the head. */
bool head_is_one_chunk(const struct pass *pass);

/* Computes the logits of `rows` rows, at most shape.logit_rows, into rows 0 and following of
 * activations.logits, after any of the passes above. */
void model_logits(struct model *model, int64_t first, int64_t rows);
