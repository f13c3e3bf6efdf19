/* Well-known models. Sources: the config.json of each on Hugging Face. */
#pragma once

/* X(NAME, name, family, layers, heads, kv heads, head size, width, MLP, positions, vocabulary,
 *   more): more sets the parts that differ from the family's. */
#define MODEL_PRESETS(X)                                                                        \
    X(GPT2, "gpt2", FAMILY_GPT2, 12, 12, 12, 64, 768, 3072, 1024, 50257, )                      \
    X(GPT2_MEDIUM, "gpt2-medium", FAMILY_GPT2, 24, 16, 16, 64, 1024, 4096, 1024, 50257, )       \
    X(GPT2_LARGE, "gpt2-large", FAMILY_GPT2, 36, 20, 20, 64, 1280, 5120, 1024, 50257, )         \
    X(GPT2_XL, "gpt2-xl", FAMILY_GPT2, 48, 25, 25, 64, 1600, 6400, 1024, 50257, )               \
    X(SMOLLM2_135M, "smollm2-135m", FAMILY_LLAMA, 30, 9, 3, 64, 576, 1536, 8192, 49152,         \
      .tied_head = true, .rope_theta = 100000)                                                  \
    X(QWEN2_5_0_5B, "qwen2.5-0.5b", FAMILY_LLAMA, 24, 14, 2, 64, 896, 4864, 32768, 151936,      \
      .tied_head = true, .rope_theta = 1e6, .bias = BIAS_QKV, .norm_eps = 1e-6)                 \
    X(QWEN3_0_6B, "qwen3-0.6b", FAMILY_LLAMA, 28, 16, 8, 128, 1024, 3072, 40960, 151936,        \
      .tied_head = true, .rope_theta = 1e6, .qk_norm = true, .norm_eps = 1e-6)                  \
    X(TINYLLAMA_1_1B, "tinyllama-1.1b", FAMILY_LLAMA, 22, 32, 4, 64, 2048, 5632, 2048, 32000, ) \
    X(LLAMA_3_2_1B, "llama-3.2-1b", FAMILY_LLAMA, 16, 32, 8, 64, 2048, 8192, 131072, 128256,    \
      .tied_head = true, .rope_theta = 500000, .rope_scaling = ROPE_LLAMA3, .rope_factor = 32)  \
    X(LLAMA_3_1_8B, "llama-3.1-8b", FAMILY_LLAMA, 32, 32, 8, 128, 4096, 14336, 131072, 128256,  \
      .rope_theta = 500000, .rope_scaling = ROPE_LLAMA3)                                        \
    X(GEMMA_3_270M, "gemma-3-270m", FAMILY_GEMMA3, 18, 4, 1, 256, 640, 2048, 32768, 262144, )   \
    X(GEMMA_3_1B, "gemma-3-1b", FAMILY_GEMMA3, 26, 4, 1, 256, 1152, 6912, 32768, 262144, )      \
    X(LLAMA_2_7B, "llama-2-7b", FAMILY_LLAMA, 32, 32, 32, 128, 4096, 11008, 4096, 32000, )      \
    X(LLAMA_2_13B, "llama-2-13b", FAMILY_LLAMA, 40, 40, 40, 128, 5120, 13824, 4096, 32000, )    \
    X(LLAMA_2_70B, "llama-2-70b", FAMILY_LLAMA, 80, 64, 8, 128, 8192, 28672, 4096, 32000, )     \
    X(MISTRAL_7B, "mistral-7b", FAMILY_LLAMA, 32, 32, 8, 128, 4096, 14336, 32768, 32768,        \
      .rope_theta = 1e6)

/* Parts of the families. */
#define FAMILY_GPT2                                                                            \
    .norm = NORM_LAYERNORM, .norm_eps = 1e-5, .positions = POSITIONS_LEARNED, .mlp = MLP_GELU, \
    .bias = BIAS_ALL, .tied_head = true, ROPE_DEFAULTS
#define FAMILY_LLAMA                                                                        \
    .norm = NORM_RMSNORM, .norm_eps = 1e-5, .positions = POSITIONS_ROPE, .mlp = MLP_SWIGLU, \
    .bias = BIAS_NONE, .tied_head = false, ROPE_DEFAULTS
#define FAMILY_GEMMA3                                                                          \
    .norm = NORM_RMSNORM, .norm_eps = 1e-6, .norm_zero_centered = true, .post_norm = true,     \
    .positions = POSITIONS_ROPE, ROPE_DEFAULTS, .rope_theta = 1e6, .rope_theta_window = 10000, \
    .window = 512, .window_pattern = 6, .qk_norm = true, .query_pre_attn_scalar = 256,         \
    .scale_embedding = true, .mlp = MLP_GEGLU, .bias = BIAS_NONE, .tied_head = true
#define ROPE_DEFAULTS                                                                       \
    .rope_theta = 10000, .rope_scaling = ROPE_UNSCALED, .rope_factor = 8,                   \
    .rope_low_freq_factor = 1, .rope_high_freq_factor = 4, .rope_original_positions = 8192, \
    .rope_attention_factor = 0, .rope_beta_fast = 32, .rope_beta_slow = 1, .rope_truncate = true
