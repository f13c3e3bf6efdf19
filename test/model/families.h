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

/* Models of other parts than GPT-2's, which is number 0. Returns what it is called. */
enum { FAMILIES = 8 };
static inline const char *set_family(struct config *config, int family) {
    static const char *const names[FAMILIES] = {"gpt2",      "llama", "qwen2",  "mixed",
                                                "mixed too", "qwen3", "gemma2", "gemma3"};
    bool qwen = family == 2 || family == 5, gemma = family >= 6;
    bool llama = family == 1 || qwen || gemma, odd = family == 4;
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
    config->model.tied_head = family != 1 && !odd;
    config->model.head_dim = family == 1 || family >= 5 ? 6 : 0;
    config->model.qk_norm = family >= 4 && family != 6;
    if (gemma) set_gemma(config, family == 7);
    return names[family];
}
