/* The parts that a transformer is made of. The first of each is GPT-2's. */
#pragma once

enum model_norm { NORM_LAYERNORM, NORM_RMSNORM };
enum model_positions { POSITIONS_LEARNED, POSITIONS_ROPE };
enum model_mlp { MLP_GELU, MLP_SWIGLU };
enum model_bias {
    BIAS_ALL,
    BIAS_QKV,
    BIAS_NONE
}; /* of linear layers; that of norms is the norm's */
enum rope_scaling { ROPE_UNSCALED, ROPE_LLAMA3 };
