/* Models of several parts, for tests that hold for all of them. */
#pragma once

#include "model/config/config.h"

/* The parts that only Gemma has, and windows in all layers but the second, fourth, ... */
static inline void set_gemma(struct config *config, bool third) {
    config->model.norm_zero_centered = config->model.post_norm = true;
    config->model.scale_embedding = true;
    config->model.mlp = MLP_GEGLU;
    config->model.query_pre_attn_scalar = 9;
    config->model.window = 5;
    config->model.window_pattern = 2;
    config->model.rope_theta_window = third ? 100 : 0;
    config->model.attention_softcap = third ? 0 : 2;
    config->model.logit_softcap = 3;
}

/* The factors of Granite and HyperCLOVA X, which also has norms after branches. */
static inline void set_granite(struct config *config, bool post_norm) {
    config->model.embedding_multiplier = 7;
    config->model.attention_multiplier = 0.3;
    config->model.residual_multiplier = 0.22;
    config->model.logits_scaling = 1.5;
    config->model.post_norm = post_norm;
}

/* Qwen3.5: the first of every two layers is a Gated DeltaNet. */
static inline void set_qwen3_5(struct config *config) {
    config->model.norm_zero_centered = config->model.qk_norm = true;
    config->model.attention_gate = true;
    config->model.partial_rotary_factor = 0.7;
    config->model.full_attention_interval = 2;
    config->model.linear_num_key_heads = 2;
    config->model.linear_num_value_heads = 4;
    config->model.linear_key_head_dim = 5;
    config->model.linear_value_head_dim = 7;
    config->model.linear_conv_kernel_dim = 3;
}

/* Models of other parts than GPT-2's, which is number 0. Returns what it is called. */
enum { FAMILIES = 21 };
static inline const char *set_family(struct config *config, int family) {
    static const char *const names[FAMILIES] = {
        "gpt2",   "llama",   "qwen2", "mixed", "mixed too", "qwen3",      "gemma2",
        "gemma3", "smollm3", "olmo2", "olmo3", "exaone4",   "granite",    "hyperclovax",
        "arcee",  "phi3",    "gated", "glm4",  "granite4",  "ministral3", "qwen3_5"};
    bool qwen = family == 2 || family == 5, gemma = family == 6 || family == 7;
    bool smollm3 = family == 8, after = family >= 9 && family <= 11;
    bool granite = family == 12 || family == 13 || family == 18, arcee = family == 14,
         phi = family == 15;
    bool gated = family == 16;
    bool llama = family == 1 || qwen || family >= 6, odd = family == 4;
    if (family == 0) return names[0];
    config->model.n_head = 4;
    config->model.n_kv_head = family == 1 || family >= 5 ? 2 : family == 2 ? 1 : 0;
    config->model.norm = llama || odd ? NORM_RMSNORM : NORM_LAYERNORM;
    config->model.norm_eps = 1e-6;
    config->model.positions = odd ? POSITIONS_LEARNED : POSITIONS_ROPE;
    config->model.rope_scaling = family == 2 ? ROPE_LLAMA3 : ROPE_UNSCALED;
    config->model.rope_original_positions = 16;
    config->model.mlp = llama || odd ? MLP_SWIGLU : MLP_GELU;
    config->model.n_inner = odd ? 101 : 72;
    config->model.bias = family == 2 ? BIAS_QKV : llama ? BIAS_NONE : BIAS_ALL;
    config->model.tied_head = family != 1 && family != 9 && family != 10 && !odd;
    config->model.head_dim = family == 1 || family >= 5 ? 6 : 0;
    config->model.qk_norm = family == 4 || family == 5 || family == 7 || after || gated;
    config->model.attention_gate = gated;
    config->model.no_rope_interval = smollm3 || family == 11 ? 2 : 0;
    config->model.post_norm = config->model.no_pre_norm = after;
    config->model.qk_norm_whole = family == 9 || family == 10;
    config->model.window = family == 10 || family == 11 ? 5 : 0;
    config->model.window_pattern = family == 10 || family == 11 ? 2 : 0;
    config->model.rope_theta_window = family == 10 ? 100 : 0;
    if (gemma) set_gemma(config, family == 7);
    if (arcee) config->model.mlp = MLP_RELU2, config->model.bias = BIAS_ALL;
    if (phi) config->model.fused = FUSED_ALL, config->model.partial_rotary_factor = 0.7;
    if (family == 20) set_qwen3_5(config);
    if (granite) set_granite(config, family == 13);
    if (family == 17) {
        config->model.bias = BIAS_QKV;
        config->model.post_norm = config->model.rope_interleaved = true;
        config->model.partial_rotary_factor = 0.7;
    }
    if (family == 17 || family == 18) config->model.fused = FUSED_MLP;
    if (family == 19) config->model.rope_scaling = ROPE_YARN;
    config->model.query_scaling_beta = family == 19 ? 0.3 : 0;
    return names[family];
}
