/* Well-known models. Sources: the config.json of each on Hugging Face. */
#pragma once

#include "model/architecture/architecture.h"

/* X(NAME, name, family, layers, heads, kv heads, head size, width, MLP, positions, vocabulary,
 *   more): more sets the parts that differ from the family's. */
#define MODEL_PRESETS(X)                                                                           \
    X(GPT2, "gpt2", PRESET_GPT2, 12, 12, 12, 64, 768, 3072, 1024, 50257, )                         \
    X(GPT2_MEDIUM, "gpt2-medium", PRESET_GPT2, 24, 16, 16, 64, 1024, 4096, 1024, 50257, )          \
    X(GPT2_LARGE, "gpt2-large", PRESET_GPT2, 36, 20, 20, 64, 1280, 5120, 1024, 50257, )            \
    X(GPT2_XL, "gpt2-xl", PRESET_GPT2, 48, 25, 25, 64, 1600, 6400, 1024, 50257, )                  \
    X(SMOLLM2_135M, "smollm2-135m", PRESET_LLAMA, 30, 9, 3, 64, 576, 1536, 8192, 49152,            \
      .tied_head = true, .rope_theta = 100000)                                                     \
    X(QWEN2_5_0_5B, "qwen2.5-0.5b", PRESET_LLAMA, 24, 14, 2, 64, 896, 4864, 32768, 151936,         \
      .tied_head = true, .rope_theta = 1e6, .bias = BIAS_QKV, .norm_eps = 1e-6)                    \
    X(QWEN3_0_6B, "qwen3-0.6b", PRESET_LLAMA, 28, 16, 8, 128, 1024, 3072, 40960, 151936,           \
      .tied_head = true, .rope_theta = 1e6, .qk_norm = true, .norm_eps = 1e-6)                     \
    X(TINYLLAMA_1_1B, "tinyllama-1.1b", PRESET_LLAMA, 22, 32, 4, 64, 2048, 5632, 2048, 32000, )    \
    X(LLAMA_3_2_1B, "llama-3.2-1b", PRESET_LLAMA, 16, 32, 8, 64, 2048, 8192, 131072, 128256,       \
      .tied_head = true, .rope_theta = 500000, .rope_scaling = ROPE_LLAMA3, .rope_factor = 32)     \
    X(LLAMA_3_1_8B, "llama-3.1-8b", PRESET_LLAMA, 32, 32, 8, 128, 4096, 14336, 131072, 128256,     \
      .rope_theta = 500000, .rope_scaling = ROPE_LLAMA3)                                           \
    X(GEMMA_3_270M, "gemma-3-270m", PRESET_GEMMA3, 18, 4, 1, 256, 640, 2048, 32768, 262144, )      \
    X(GEMMA_3_1B, "gemma-3-1b", PRESET_GEMMA3, 26, 4, 1, 256, 1152, 6912, 32768, 262144, )         \
    X(LLAMA_2_7B, "llama-2-7b", PRESET_LLAMA, 32, 32, 32, 128, 4096, 11008, 4096, 32000, )         \
    X(LLAMA_2_13B, "llama-2-13b", PRESET_LLAMA, 40, 40, 40, 128, 5120, 13824, 4096, 32000, )       \
    X(LLAMA_2_70B, "llama-2-70b", PRESET_LLAMA, 80, 64, 8, 128, 8192, 28672, 4096, 32000, )        \
    X(MISTRAL_7B, "mistral-7b", PRESET_LLAMA, 32, 32, 8, 128, 4096, 14336, 32768, 32768,           \
      .rope_theta = 1e6)                                                                           \
    X(SMOLLM3_3B, "smollm3-3b", PRESET_LLAMA, 36, 16, 4, 128, 2048, 11008, 65536, 128256,          \
      .tied_head = true, .rope_theta = 5e6, .no_rope_interval = 4, .norm_eps = 1e-6)               \
    X(OLMO_2_1B, "olmo-2-1b", PRESET_OLMO, 16, 16, 16, 128, 2048, 8192, 4096, 100352, )            \
    X(OLMO_3_7B, "olmo-3-7b", PRESET_OLMO, 32, 32, 32, 128, 4096, 11008, 65536, 100278,            \
      .rope_theta_window = 5e5, .window = 4096, .window_pattern = 4, .rope_scaling = ROPE_YARN)    \
    X(EXAONE_4_1_2B, "exaone-4.0-1.2b", POST_NORM_PARTS, 30, 32, 8, 64, 2048, 4096, 65536, 102400, \
      .norm_eps = 1e-5, COMMON_DEFAULTS, .rope_theta = 1e6, .rope_scaling = ROPE_LLAMA3,           \
      .rope_factor = 16, .tied_head = true)                                                        \
    X(GRANITE_3_3_2B, "granite-3.3-2b", PRESET_LLAMA, 40, 32, 8, 64, 2048, 8192, 131072, 49152,    \
      .tied_head = true, .rope_theta = 1e7, .embedding_multiplier = 12,                            \
      .attention_multiplier = 0.015625, .residual_multiplier = 0.22, .logits_scaling = 8)          \
    X(PHI_3_MINI_4K, "phi-3-mini-4k", PRESET_LLAMA, 32, 32, 32, 96, 3072, 8192, 4096, 32064,       \
      .window = 2047, .fused = FUSED_ALL, .partial_rotary_factor = 1)                              \
    X(QWEN3_5_0_8B, "qwen3.5-0.8b", PRESET_LLAMA, 24, 8, 2, 256, 1024, 3584, 262144, 248320,       \
      .tied_head = true, .rope_theta = 1e7, .norm_eps = 1e-6, .norm_zero_centered = true,          \
      .qk_norm = true, .attention_gate = true, .partial_rotary_factor = 0.25,                      \
      .full_attention_interval = 4)                                                                \
    X(MINISTRAL_3_3B, "ministral-3-3b", PRESET_LLAMA, 26, 32, 8, 128, 3072, 9216, 262144, 131072,  \
      .tied_head = true, .rope_theta = 1e6, .rope_scaling = ROPE_YARN, .rope_factor = 16,          \
      .rope_original_positions = 16384, .rope_attention_factor = 1, .query_scaling_beta = 0.1)     \
    X(GLM_4_9B, "glm-4-9b", PRESET_LLAMA, 40, 32, 2, 128, 4096, 13696, 32768, 151552,              \
      .bias = BIAS_QKV, .post_norm = true, .rope_interleaved = true, .partial_rotary_factor = 0.5, \
      .fused = FUSED_MLP)

/* Parts of most models of the families. */
#define PRESET_GPT2  .norm_eps = 1e-5, .bias = BIAS_ALL, .tied_head = true, COMMON_DEFAULTS
#define PRESET_LLAMA LLAMA_PARTS, .norm_eps = 1e-5, .bias = BIAS_NONE, COMMON_DEFAULTS
#define PRESET_GEMMA3                                                                \
    .norm_eps = 1e-6, GEMMA_PARTS, .logit_softcap = 0, .query_pre_attn_scalar = 256, \
    .qk_norm = true, .tied_head = true, COMMON_DEFAULTS, .rope_theta = 1e6,          \
    .rope_theta_window = 10000, .window = 512, .window_pattern = 6
#define PRESET_OLMO \
    POST_NORM_PARTS, .qk_norm_whole = true, .norm_eps = 1e-6, COMMON_DEFAULTS, .rope_theta = 5e5
#define COMMON_DEFAULTS                                                                           \
    .rope_theta = 10000, .rope_scaling = ROPE_UNSCALED, .rope_factor = 8,                         \
    .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_positions = 8192,       \
    .rope_attention_factor = 0, .rope_beta_fast = 32, .rope_beta_slow = 1, .rope_truncate = true, \
    .linear_num_key_heads = 16, .linear_num_value_heads = 16, .linear_key_head_dim = 128,         \
    .linear_value_head_dim = 128, .linear_conv_kernel_dim = 4
