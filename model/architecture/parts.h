/* Alternatives for each part of a transformer. The first of each is GPT-2's. */
#pragma once

#include <stdbool.h>

#include "kernels/kernels.h"

enum model_norm { NORM_LAYERNORM, NORM_RMSNORM };
enum model_positions { POSITIONS_LEARNED, POSITIONS_ROPE };

/* MLPs: X(NAME, name in a config, true if gated). gelu and relu2, max(x, 0)^2, are not gated;
 * swiglu and geglu have a SiLU or a GELU of the gate. */
#define MLPS(X)               \
    X(GELU, "gelu", false)    \
    X(SWIGLU, "swiglu", true) \
    X(GEGLU, "geglu", true)   \
    X(RELU2, "relu2", false)
enum model_mlp {
#define X(NAME, ...) MLP_##NAME,
    MLPS(X)
#undef X
};
bool mlp_is_gated(enum model_mlp mlp);

/* Matrices of a block that are one tensor in files and for adapters: none, or q with k and v, and
 * gate with up, as in Phi-3, or gate with up alone, as in GLM-4. */
enum model_fused { FUSED_NONE, FUSED_ALL, FUSED_MLP };

/* Linear layers with a bias. The kind of norm determines the bias of norms. */
enum model_bias { BIAS_ALL, BIAS_QKV, BIAS_NONE };
/* Ways to reach contexts beyond rope_original_positions: model/core/rope.h. */
enum rope_scaling { ROPE_UNSCALED, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_YARN, ROPE_LLAMA3 };
