/* Low-rank adapters (LoRA; Hu et al. 2021): the linear layers that can have one.
 *
 *     out = in W' + scale (in A') B'      A [rank, inputs], B [outputs, rank]
 *
 * A target is a linear layer of Hugging Face's files. Operations read q, k and v as one matrix, and
 * gate and up as one; each of these has an adapter of its own. Adapters of one site have adjacent
 * A, which operations read as one matrix [sum of ranks, inputs]. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/architecture/autocast_sites.h"

struct gpt_shape;

/* X(NAME, GPT-2's layer, Llama's layer, site, field of its weight): layers are names in Hugging
 * Face's files after "h.LAYER." or "model.layers.LAYER."; "": absent in that family. */
#define ADAPTER_TARGETS(X)                                             \
    X(Q, "attn.c_attn", "self_attn.q_proj", SITE_QKV, qkv_weight)      \
    X(K, "", "self_attn.k_proj", SITE_QKV, k_weight)                   \
    X(V, "", "self_attn.v_proj", SITE_QKV, v_weight)                   \
    X(O, "attn.c_proj", "self_attn.o_proj", SITE_ATTENTION_PROJECTION, \
      attention_projection_weight)                                     \
    X(GATE, "mlp.c_fc", "mlp.gate_proj", SITE_MLP_FC, mlp_fc_weight)   \
    X(UP, "", "mlp.up_proj", SITE_MLP_FC, mlp_up_weight)               \
    X(DOWN, "mlp.c_proj", "mlp.down_proj", SITE_MLP_PROJECTION, mlp_projection_weight)

enum adapter_target {
#define X(NAME, ...) ADAPTER_##NAME,
    ADAPTER_TARGETS(X)
#undef X
        ADAPTER_TARGET_COUNT
};

enum { ADAPTER_FUSED_MAX = 3 }; /* targets of one site */

/* Returns the targets, as bits 1 << target, that a name of PEFT selects in a model of the shape:
 * "q_proj", "c_proj" (two of GPT-2's), "all-linear"; 0 if there are none. */
unsigned adapter_targets_named(const struct gpt_shape *shape, const char *name);

/* Returns the name by which PEFT selects a target, such as "q_proj". */
const char *adapter_target_name(const struct gpt_shape *shape, enum adapter_target target);

/* Stores the targets of a site that have an adapter, in order, and returns how many these are. */
int adapter_targets_of(enum adapter_target targets[ADAPTER_FUSED_MAX],
                       const struct gpt_shape *shape, enum autocast_site site);

/* True if the base model is frozen, since adapters are trained. */
bool shape_has_adapters(const struct gpt_shape *shape);
