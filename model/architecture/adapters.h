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

#include "model/architecture/parameters.h"

/* Returns the targets, as bits 1 << target, that a name of PEFT selects in a model of the shape:
 * "q_proj", "c_proj" (two of GPT-2's), "attn.c_proj", "all-linear"; 0 if there are none. */
unsigned adapter_targets_named(const struct model_shape *shape, const char *name);

/* Returns the name of a target's linear layer in a block, such as "self_attn.q_proj". */
const char *adapter_target_layer(const struct model_shape *shape, enum adapter_target target);

/* Returns the name by which PEFT selects one of the shape's targets: "q_proj", or "attn.c_proj" if
 * "c_proj" would select a layer without adapter, too. */
const char *adapter_target_name(const struct model_shape *shape, enum adapter_target target);

/* Returns the largest rank of a target's adapter: the smaller side of the matrix. */
int64_t adapter_rank_max(const struct model_shape *shape, enum adapter_target target);

/* Stores the targets of a site that have an adapter in the layer of the shape, in order, and
 * returns how many these are. */
int adapter_targets_of(enum adapter_target targets[ADAPTER_FUSED_MAX],
                       const struct model_shape *shape, enum autocast_site site);
