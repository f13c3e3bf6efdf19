/* The architecture, declared once: its sizes, autocast's sites, its parameters and its activations.
 *
 * All code that depends on the architecture expands these lists: the option table, resolved dtypes,
 * memory layout, initialization, optimizer groups, files, counts of parameters and arithmetic, and
 * the tensors of an audit. The computation is written by hand: model/pass/forward.c and
 * model/pass/backward.c, with adapter.c and core/quantization.c for parts that every layer has.
 *
 * Shapes are written with a struct model_shape in scope as `s`:
 *   s->padded_vocab  V   s->n_embd  C   s->rows  N = B * T   s->n_head  H   s->n_kv_head  Hkv
 *   s->head_dim  D       s->n_inner  I
 * and in lists of what a layer has with that of the layer (shape_of_layer), where s->is_delta is
 * true in a Gated DeltaNet. */
#pragma once

/* X(size): integer keys of the config's block "model". */
#define MODEL_SIZES(X) \
    X(n_layer)         \
    X(n_head)          \
    X(n_kv_head)       \
    X(head_dim)        \
    X(n_embd)          \
    X(n_inner)         \
    X(n_positions)     \
    X(vocab_size)

/* X(type, part, in a family): the parts of the transformer, keys of the same block.
 * model/architecture/parts.h declares the types. All models of a family have the same FIXED parts;
 * OPTIONAL ones are 0 unless the family has them; FREE ones may differ. */
#define MODEL_PARTS(X)                            \
    X(enum model_norm, norm, FIXED)               \
    X(double, norm_eps, FREE)                     \
    X(bool, norm_zero_centered, FIXED)            \
    X(bool, post_norm, FIXED)                     \
    X(bool, no_pre_norm, FIXED)                   \
    X(enum model_positions, positions, FIXED)     \
    X(double, rope_theta, FREE)                   \
    X(double, rope_theta_window, OPTIONAL)        \
    X(enum rope_scaling, rope_scaling, FREE)      \
    X(double, rope_factor, FREE)                  \
    X(double, rope_low_freq_factor, FREE)         \
    X(double, rope_high_freq_factor, FREE)        \
    X(int64_t, rope_original_positions, FREE)     \
    X(double, rope_attention_factor, FREE)        \
    X(double, rope_beta_fast, FREE)               \
    X(double, rope_beta_slow, FREE)               \
    X(bool, rope_truncate, FREE)                  \
    X(int64_t, no_rope_interval, OPTIONAL)        \
    X(bool, rope_interleaved, FIXED)              \
    X(double, query_scaling_beta, OPTIONAL)       \
    X(bool, qk_norm, FIXED)                       \
    X(bool, qk_norm_whole, FIXED)                 \
    X(bool, attention_gate, FIXED)                \
    X(double, query_pre_attn_scalar, OPTIONAL)    \
    X(double, attention_softcap, OPTIONAL)        \
    X(double, logit_softcap, OPTIONAL)            \
    X(bool, scale_embedding, FIXED)               \
    X(int64_t, window, FREE)                      \
    X(int64_t, window_from, FREE)                 \
    X(int64_t, window_pattern, FREE)              \
    X(enum model_mlp, mlp, FIXED)                 \
    X(enum model_bias, bias, FREE)                \
    X(bool, tied_head, FREE)                      \
    X(double, embedding_multiplier, OPTIONAL)     \
    X(double, attention_multiplier, OPTIONAL)     \
    X(double, residual_multiplier, OPTIONAL)      \
    X(double, logits_scaling, OPTIONAL)           \
    X(double, partial_rotary_factor, OPTIONAL)    \
    X(int64_t, full_attention_interval, OPTIONAL) \
    X(int64_t, linear_num_key_heads, FREE)        \
    X(int64_t, linear_num_value_heads, FREE)      \
    X(int64_t, linear_key_head_dim, FREE)         \
    X(int64_t, linear_value_head_dim, FREE)       \
    X(int64_t, linear_conv_kernel_dim, FREE)      \
    X(enum model_fused, fused, FIXED)

/* X(NAME, Hugging Face's model_type, its class without "ForCausalLM", GGUF's architecture, TOKENS,
 *   window, period, PARTS, condition): families of models, which are read and exported as such
 *   GGUF's architecture: NULL: llama.cpp has none
 *   tokens: those that begin a text, end it and pad, for files that name none; -1: none
 *   window: for files that name none; 0: a class without. period: every N-th layer has no window;
 *           0: not the class's way
 *   parts: initializers of FIXED and OPTIONAL ones (above) and, for files that name none, the bias
 *          and the bases of rope, which are else 10000
 *   condition: on sizes and other parts. A shape is of one family at most, so that of Seed-OSS,
 *              whose parts are Qwen2's, never holds: model.type names it */
#define MODEL_FAMILIES(X)                                                                          \
    X(GPT2, "gpt2", "GPT2", "gpt2", TOKENS(50256, 50256, -1), 0, 0, PARTS(.bias = BIAS_ALL),       \
      s->bias == BIAS_ALL && s->tied_head && s->n_kv_head == s->n_head && shape_q(s) == s->n_embd) \
    X(LLAMA, "llama", "Llama", "llama", TOKENS(1, 2, -1), 0, 0,                                    \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE), s->bias != BIAS_QKV && shape_window_layers(s) == 0)   \
    X(MISTRAL, "mistral", "Mistral", "llama", TOKENS(1, 2, -1), 4096, 0,                           \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE),                                                       \
      s->bias == BIAS_NONE && shape_window_layers(s) == s->n_layer)                                \
    X(QWEN2, "qwen2", "Qwen2", "qwen2", TOKENS(-1, -1, -1), 4096, 0,                               \
      PARTS(LLAMA_PARTS, .bias = BIAS_QKV), s->bias == BIAS_QKV)                                   \
    X(QWEN3, "qwen3", "Qwen3", "qwen3", TOKENS(-1, -1, -1), 4096, 0,                               \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE, .qk_norm = true), s->bias == BIAS_NONE)                \
    X(GEMMA2, "gemma2", "Gemma2", "gemma2", TOKENS(2, 1, 0), 4096, 2,                              \
      PARTS(GEMMA_PARTS, .attention_softcap = 1), s->bias == BIAS_NONE)                            \
    X(GEMMA3, "gemma3_text", "Gemma3", "gemma3", TOKENS(2, 1, 0), 4096, 6,                         \
      PARTS(GEMMA_PARTS, .qk_norm = true, .rope_theta = 1e6, .rope_theta_window = 10000),          \
      s->bias == BIAS_NONE)                                                                        \
    X(SMOLLM3, "smollm3", "SmolLM3", "smollm3", TOKENS(128000, 128001, 128004), 0, 0,              \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE, .rope_theta = 2e6, .no_rope_interval = 4),             \
      s->no_rope_interval > 0 && s->bias != BIAS_QKV && shape_window_layers(s) == 0)               \
    X(OLMO2, "olmo2", "Olmo2", "olmo2", TOKENS(-1, 50279, 1), 0, 0,                                \
      PARTS(POST_NORM_PARTS, .qk_norm_whole = true),                                               \
      s->bias == BIAS_NONE && shape_window_layers(s) == 0)                                         \
    X(OLMO3, "olmo3", "Olmo3", "olmo2", TOKENS(-1, 50279, 1), 4096, 4,                             \
      PARTS(POST_NORM_PARTS, .qk_norm_whole = true, .rope_theta = 5e5, .rope_theta_window = 5e5),  \
      s->bias == BIAS_NONE && s->rope_theta_window > 0)                                            \
    X(EXAONE4, "exaone4", "Exaone4", "exaone4", TOKENS(0, 2, -1), 4096, 4,                         \
      PARTS(POST_NORM_PARTS, .no_rope_interval = 1),                                               \
      s->bias == BIAS_NONE && s->no_rope_interval == (s->window > 0 ? s->window_pattern : 0) &&    \
          (s->window == 0 || (s->window_from == 0 && shape_window_layers(s) > 0)))                 \
    X(GRANITE, "granite", "Granite", "granite", TOKENS(1, 2, -1), 0, 0,                            \
      PARTS(LLAMA_PARTS, MULTIPLIERS, .bias = BIAS_NONE),                                          \
      s->attention_multiplier > 0 && s->bias != BIAS_QKV && shape_window_layers(s) == 0)           \
    X(HYPERCLOVAX, "hyperclovax", "HyperCLOVAX", NULL, TOKENS(1, 2, -1), 0, 0,                     \
      PARTS(LLAMA_PARTS, MULTIPLIERS, .bias = BIAS_NONE, .post_norm = true),                       \
      s->attention_multiplier > 0 && s->bias != BIAS_QKV && shape_window_layers(s) == 0)           \
    X(ARCEE, "arcee", "Arcee", "arcee", TOKENS(128000, 128001, -1), 0, 0,                          \
      PARTS(.norm = NORM_RMSNORM, .positions = POSITIONS_ROPE, .mlp = MLP_RELU2,                   \
            .bias = BIAS_NONE),                                                                    \
      s->bias != BIAS_QKV && shape_window_layers(s) == 0)                                          \
    X(SEED_OSS, "seed_oss", "SeedOss", NULL, TOKENS(0, 2, 1), 0, 0,                                \
      PARTS(LLAMA_PARTS, .bias = BIAS_QKV), false)                                                 \
    X(PHI3, "phi3", "Phi3", "phi3", TOKENS(1, 32000, 32000), 4096, 0,                              \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE, .fused = FUSED_ALL, .partial_rotary_factor = 1),       \
      s->bias == BIAS_NONE && s->rope_scaling == ROPE_UNSCALED &&                                  \
          (shape_window_layers(s) == 0 || shape_window_layers(s) == s->n_layer))                   \
    X(QWEN3_5, "qwen3_5_text", "Qwen3_5", NULL, TOKENS(-1, -1, -1), 0, 0,                          \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE, .norm_zero_centered = true, .qk_norm = true,           \
            .attention_gate = true, .partial_rotary_factor = 0.25, .full_attention_interval = 4),  \
      s->bias == BIAS_NONE && s->rope_scaling == ROPE_UNSCALED &&                                  \
          s->full_attention_interval > 0 && shape_window_layers(s) == 0)                           \
    X(GLM4, "glm4", "Glm4", "glm4", TOKENS(-1, 151329, 151329), 0, 0,                              \
      PARTS(LLAMA_PARTS, .bias = BIAS_QKV, .post_norm = true, .rope_interleaved = true,            \
            .partial_rotary_factor = 0.5, .fused = FUSED_MLP),                                     \
      s->bias != BIAS_ALL && s->rope_scaling == ROPE_UNSCALED && s->partial_rotary_factor > 0 &&   \
          shape_window_layers(s) == 0)                                                             \
    X(GRANITE4, "granitemoehybrid", "GraniteMoeHybrid", NULL, TOKENS(1, 2, -1), 0, 0,              \
      PARTS(LLAMA_PARTS, MULTIPLIERS, .bias = BIAS_NONE, .fused = FUSED_MLP),                      \
      s->attention_multiplier > 0 && s->bias == BIAS_NONE && shape_window_layers(s) == 0)          \
    X(MINISTRAL3, "ministral3", "Ministral3", NULL, TOKENS(1, 2, 11), 0, 0,                        \
      PARTS(LLAMA_PARTS, .bias = BIAS_NONE, .query_scaling_beta = 0.1),                            \
      s->query_scaling_beta > 0 && s->bias == BIAS_NONE && shape_window_layers(s) == 0)

#define LLAMA_PARTS .norm = NORM_RMSNORM, .positions = POSITIONS_ROPE, .mlp = MLP_SWIGLU
#define POST_NORM_PARTS \
    LLAMA_PARTS, .bias = BIAS_NONE, .post_norm = true, .no_pre_norm = true, .qk_norm = true
#define MULTIPLIERS                                                                 \
    .embedding_multiplier = 1, .attention_multiplier = 1, .residual_multiplier = 1, \
    .logits_scaling = 1
#define GEMMA_PARTS                                                                         \
    .norm = NORM_RMSNORM, .positions = POSITIONS_ROPE, .mlp = MLP_GEGLU, .bias = BIAS_NONE, \
    .norm_zero_centered = true, .post_norm = true, .scale_embedding = true,                 \
    .query_pre_attn_scalar = 1, .logit_softcap = 1

/* X(SITE, name in autocast.float32, policy): an operation whose dtype autocast determines.
 *   LOWER    the low precision dtype, unless the config keeps it in fp32
 *   LINEAR   the same; a linear layer of a block, whose operands quantized precisions round
 *   INPUT    the dtype of its input, unless the config keeps it in fp32
 *   FLOAT32  always fp32, so autocast.float32 does not accept its name */
#define AUTOCAST_SITES(X)                                   \
    X(EMBEDDING, "embedding", FLOAT32)                      \
    X(LAYERNORM, "layernorm", FLOAT32)                      \
    X(QKV, "qkv", LINEAR)                                   \
    X(ATTENTION, "attention", LOWER)                        \
    X(ATTENTION_PROJECTION, "attention_projection", LINEAR) \
    X(MLP_FC, "mlp_fc", LINEAR)                             \
    X(GELU, "gelu", INPUT)                                  \
    X(MLP_PROJECTION, "mlp_projection", LINEAR)             \
    X(LM_HEAD, "lm_head", LOWER)                            \
    X(CROSS_ENTROPY, "cross_entropy", FLOAT32)

/* X(SITE, inputs, outputs, amax of the input, amax of the output's gradient): the linear layers of
 * a block, and true if the operation that writes that tensor tracks its amax, as norms do. BY_GELU:
 * as a gated MLP does; a GELU and its gradient are part of this layer's matmul, which does so if
 * its operands are quantized. BY_ATTENTION and BY_ATTENTION_BACKWARD: as attention does, unless
 * another operation writes the tensor's last values. */
#define LINEAR_LAYERS(X)                                                   \
    X(QKV, s->n_embd, shape_projected(s), true, BY_ATTENTION_BACKWARD)     \
    X(ATTENTION_PROJECTION, shape_mixed(s), s->n_embd, BY_ATTENTION, true) \
    X(MLP_FC, s->n_embd, shape_hidden(s), true, BY_GELU(MLP_PROJECTION))   \
    X(MLP_PROJECTION, s->n_inner, s->n_embd, BY_GELU(MLP_FC), true)

/* X(field, GPT-2's name, Llama's name, GGUF's name, extent, site that reads it, group, init,
 *   gradient)
 *   names: in Hugging Face's files. A model that is GPT-2 in all its parts has GPT-2's, any other
 *          Llama's; NONE: absent in that family. GGUF's: without ".weight" or ".bias"
 *   extent: MATRIX, VECTOR or TABLE of model/architecture/parameters.h, or IF(condition, extent)
 *   site: of autocast, SITE_...
 *   group: of the optimizer, GROUP_...: DECAYED, as usual only matrices, NOT_DECAYED or FROZEN
 *   init: the standard deviation of a normal distribution, or INIT_ONE, INIT_ZERO, or INIT_NORM,
 *         for which the factors of a norm are 1. Projections onto the residual stream start
 *         smaller, by 1 / sqrt(2 layers) (Radford et al. 2019).
 *   gradient: MATMUL: a matmul, so the first micro-batch of a step replaces it; ADDED: always
 *             accumulated; FUSED_WITH_PREVIOUS: like the previous parameter, which it follows
 *             without a gap, so that operations read both as one tensor (the first's field) */
#define MODEL_PARAMETERS(X)                                                                        \
    X(wte, "wte.weight", "model.embed_tokens.weight", "token_embd",                                \
      TABLE(DIM_VOCAB, s->padded_vocab), s->tied_head ? SITE_LM_HEAD : SITE_EMBEDDING, DECAYED,    \
      0.02f, s->tied_head ? MATMUL : ADDED)                                                        \
    X(lm_head, NONE, "lm_head.weight", "output",                                                   \
      IF(!s->tied_head, TABLE(DIM_VOCAB, s->padded_vocab)), SITE_LM_HEAD, DECAYED, 0.02f, MATMUL)  \
    X(wpe, "wpe.weight", "model.embed_positions.weight", "position_embd",                          \
      IF(s->positions == POSITIONS_LEARNED, TABLE(DIM_POSITIONS, s->n_positions)), SITE_EMBEDDING, \
      DECAYED, 0.02f, ADDED)                                                                       \
    X(lnf_weight, "ln_f.weight", "model.norm.weight", "output_norm", VECTOR(DIM_EMBD),             \
      SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)                                            \
    X(lnf_bias, "ln_f.bias", "model.norm.bias", "output_norm",                                     \
      IF(s->norm == NORM_LAYERNORM, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED, INIT_ZERO,     \
      ADDED)

/* True if q, k and v, or gate and up, are tensors of their own; and the names of the first. */
#define IS_SPLIT (s->llama_names && s->fused != FUSED_ALL)
#define HAS_GATE (mlp_is_gated(s->mlp) && s->fused == FUSED_NONE)
#define HAS_K    (IS_SPLIT && !s->is_delta)
#define QKV_NAME(ending)                            \
    (s->is_delta ? "linear_attn.in_proj_qkv" ending \
     : IS_SPLIT  ? "self_attn.q_proj" ending        \
                 : "self_attn.qkv_proj" ending)
#define MLP_NAME(ending)                                      \
    (is_granite4(s)        ? "shared_mlp.input_linear" ending \
     : s->fused            ? "mlp.gate_up_proj" ending        \
     : s->mlp == MLP_RELU2 ? "mlp.up_proj" ending             \
                           : "mlp.gate_proj" ending)

/* Names where branches end with a norm: Gemma's, HyperCLOVA X's and GLM-4's. */
#define POST_NORM(gemma, hyperclovax, glm4) \
    (s->attention_multiplier > 0 ? (hyperclovax) : s->rope_interleaved ? (glm4) : (gemma))

/* The same for each layer. GPT-2's names follow "h.LAYER.", Llama's "model.layers.LAYER.", GGUF's
 * "blk.LAYER.". */
#define LAYER_PARAMETERS(X)                                                                        \
    X(ln1_weight, "ln_1.weight", "input_layernorm.weight", "attn_norm",                            \
      IF(!s->no_pre_norm, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)     \
    X(ln1_bias, "ln_1.bias", "input_layernorm.bias", "attn_norm",                                  \
      IF(s->norm == NORM_LAYERNORM, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED, INIT_ZERO,     \
      ADDED)                                                                                       \
    X(qkv_weight, "attn.c_attn.weight", QKV_NAME(".weight"), IS_SPLIT ? "attn_q" : "attn_qkv",     \
      MATRIX(DIM_EMBD, s->is_delta ? DIM_CONVOLVED                                                 \
                       : IS_SPLIT  ? DIM_Q_GATE                                                    \
                                   : DIM_QKV),                                                      \
      SITE_QKV, DECAYED, 0.02f, MATMUL)                                                            \
    X(k_weight, NONE, "self_attn.k_proj.weight", "attn_k", IF(HAS_K, MATRIX(DIM_EMBD, DIM_KV)),    \
      SITE_QKV, DECAYED, 0.02f, FUSED_WITH_PREVIOUS)                                               \
    X(v_weight, NONE, "self_attn.v_proj.weight", "attn_v", IF(HAS_K, MATRIX(DIM_EMBD, DIM_KV)),    \
      SITE_QKV, DECAYED, 0.02f, FUSED_WITH_PREVIOUS)                                               \
    X(z_weight, NONE, "linear_attn.in_proj_z.weight", NONE,                                        \
      IF(s->is_delta, MATRIX(DIM_EMBD, DIM_VALUES)), SITE_QKV, DECAYED, 0.02f,                     \
      FUSED_WITH_PREVIOUS)                                                                         \
    X(b_weight, NONE, "linear_attn.in_proj_b.weight", NONE,                                        \
      IF(s->is_delta, MATRIX(DIM_EMBD, DIM_VALUE_HEADS)), SITE_QKV, DECAYED, 0.02f,                \
      FUSED_WITH_PREVIOUS)                                                                         \
    X(a_weight, NONE, "linear_attn.in_proj_a.weight", NONE,                                        \
      IF(s->is_delta, MATRIX(DIM_EMBD, DIM_VALUE_HEADS)), SITE_QKV, DECAYED, 0.02f,                \
      FUSED_WITH_PREVIOUS)                                                                         \
    X(conv_weight, NONE, "linear_attn.conv1d.weight", NONE, IF(s->is_delta, CONVOLUTION),          \
      SITE_ATTENTION, DECAYED, 0.02f, ADDED)                                                       \
    X(a_log, NONE, "linear_attn.A_log", NONE, IF(s->is_delta, VECTOR(DIM_VALUE_HEADS)),            \
      SITE_LAYERNORM, NOT_DECAYED, INIT_LOG_UNIFORM, ADDED)                                        \
    X(dt_bias, NONE, "linear_attn.dt_bias", NONE, IF(s->is_delta, VECTOR(DIM_VALUE_HEADS)),        \
      SITE_LAYERNORM, NOT_DECAYED, INIT_ONE, ADDED)                                                \
    X(gated_norm_weight, NONE, "linear_attn.norm.weight", NONE,                                    \
      IF(s->is_delta, VECTOR(SIDE(s->linear_value_head_dim, "model.linear_value_head_dim"))),      \
      SITE_LAYERNORM, NOT_DECAYED, INIT_ONE, ADDED)                                                \
    X(qkv_bias, "attn.c_attn.bias", QKV_NAME(".bias"), IS_SPLIT ? "attn_q" : "attn_qkv",           \
      IF(s->bias != BIAS_NONE, VECTOR(IS_SPLIT ? DIM_Q_GATE : DIM_QKV)), SITE_QKV, NOT_DECAYED,    \
      INIT_ZERO, ADDED)                                                                            \
    X(k_bias, NONE, "self_attn.k_proj.bias", "attn_k",                                             \
      IF(s->bias != BIAS_NONE && IS_SPLIT, VECTOR(DIM_KV)), SITE_QKV, NOT_DECAYED, INIT_ZERO,      \
      FUSED_WITH_PREVIOUS)                                                                         \
    X(v_bias, NONE, "self_attn.v_proj.bias", "attn_v",                                             \
      IF(s->bias != BIAS_NONE && IS_SPLIT, VECTOR(DIM_KV)), SITE_QKV, NOT_DECAYED, INIT_ZERO,      \
      FUSED_WITH_PREVIOUS)                                                                         \
    X(q_norm_weight, NONE, "self_attn.q_norm.weight", "attn_q_norm",                               \
      IF(s->qk_norm, VECTOR(s->qk_norm_whole ? DIM_Q : DIM_HEAD)), SITE_LAYERNORM, NOT_DECAYED,    \
      INIT_NORM(s), ADDED)                                                                         \
    X(k_norm_weight, NONE, "self_attn.k_norm.weight", "attn_k_norm",                               \
      IF(s->qk_norm, VECTOR(s->qk_norm_whole ? DIM_KV : DIM_HEAD)), SITE_LAYERNORM, NOT_DECAYED,   \
      INIT_NORM(s), ADDED)                                                                         \
    X(attention_projection_weight, "attn.c_proj.weight",                                           \
      s->is_delta ? "linear_attn.out_proj.weight" : "self_attn.o_proj.weight", "attn_output",      \
      MATRIX(s->is_delta ? DIM_VALUES : DIM_Q, DIM_EMBD), SITE_ATTENTION_PROJECTION, DECAYED,      \
      0.02f / sqrtf(2.0f * (float)s->n_layer), MATMUL)                                             \
    X(attention_projection_bias, "attn.c_proj.bias", "self_attn.o_proj.bias", "attn_output",       \
      IF(s->bias == BIAS_ALL, VECTOR(DIM_EMBD)), SITE_ATTENTION_PROJECTION, NOT_DECAYED,           \
      INIT_ZERO, ADDED)                                                                            \
    X(post_attention_norm_weight, NONE,                                                            \
      POST_NORM("post_attention_layernorm.weight", "post_norm1.weight",                            \
                "post_self_attn_layernorm.weight"),                                                \
      "post_attention_norm", IF(s->post_norm, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED,      \
      INIT_NORM(s), ADDED)                                                                         \
    X(ln2_weight, "ln_2.weight",                                                                   \
      s->post_norm                                                                                 \
          ? POST_NORM("pre_feedforward_layernorm.weight", "post_attention_layernorm.weight",       \
                      "post_attention_layernorm.weight")                                           \
          : "post_attention_layernorm.weight",                                                     \
      "ffn_norm", IF(!s->no_pre_norm, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED,              \
      INIT_NORM(s), ADDED)                                                                         \
    X(ln2_bias, "ln_2.bias",                                                                       \
      s->post_norm ? "pre_feedforward_layernorm.bias" : "post_attention_layernorm.bias",           \
      "ffn_norm", IF(s->norm == NORM_LAYERNORM, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED,    \
      INIT_ZERO, ADDED)                                                                            \
    X(mlp_fc_weight, "mlp.c_fc.weight", MLP_NAME(".weight"), HAS_GATE ? "ffn_gate" : "ffn_up",     \
      MATRIX(DIM_EMBD, s->fused ? DIM_HIDDEN : DIM_INNER), SITE_MLP_FC, DECAYED, 0.02f, MATMUL)    \
    X(mlp_up_weight, NONE, "mlp.up_proj.weight", "ffn_up",                                         \
      IF(HAS_GATE, MATRIX(DIM_EMBD, DIM_INNER)), SITE_MLP_FC, DECAYED, 0.02f, FUSED_WITH_PREVIOUS) \
    X(mlp_fc_bias, "mlp.c_fc.bias", MLP_NAME(".bias"), HAS_GATE ? "ffn_gate" : "ffn_up",           \
      IF(s->bias == BIAS_ALL, VECTOR(s->fused ? DIM_HIDDEN : DIM_INNER)), SITE_MLP_FC,             \
      NOT_DECAYED, INIT_ZERO, ADDED)                                                               \
    X(mlp_up_bias, NONE, "mlp.up_proj.bias", "ffn_up",                                             \
      IF(HAS_GATE && s->bias == BIAS_ALL, VECTOR(DIM_INNER)), SITE_MLP_FC, NOT_DECAYED, INIT_ZERO, \
      FUSED_WITH_PREVIOUS)                                                                         \
    X(mlp_projection_weight, "mlp.c_proj.weight",                                                  \
      is_granite4(s) ? "shared_mlp.output_linear.weight" : "mlp.down_proj.weight", "ffn_down",     \
      MATRIX(DIM_INNER, DIM_EMBD), SITE_MLP_PROJECTION, DECAYED,                                   \
      0.02f / sqrtf(2.0f * (float)s->n_layer), MATMUL)                                             \
    X(mlp_projection_bias, "mlp.c_proj.bias", "mlp.down_proj.bias", "ffn_down",                    \
      IF(s->bias == BIAS_ALL, VECTOR(DIM_EMBD)), SITE_MLP_PROJECTION, NOT_DECAYED, INIT_ZERO,      \
      ADDED)                                                                                       \
    X(post_mlp_norm_weight, NONE,                                                                  \
      POST_NORM("post_feedforward_layernorm.weight", "post_norm2.weight",                          \
                "post_mlp_layernorm.weight"),                                                      \
      "post_ffw_norm", IF(s->post_norm, VECTOR(DIM_EMBD)), SITE_LAYERNORM, NOT_DECAYED,            \
      INIT_NORM(s), ADDED)

/* X(field, name in an audit, dtype, rows, columns, memory, gradient), in the order of the forward
 * pass. The gradient has the tensor's dtype and shape.
 *   dtype: BETWEEN(site that writes it, site that reads it), or the RESIDUAL_STREAM's
 *   memory: OWN(level), one tensor for each layer, or IN(scratch, level). From this level of enum
 *           recompute on (model/architecture/activations.h) the layers share one tensor, and the
 *           backward pass recomputes it. READ_ONCE(level) is OWN, except that layers also share
 *           the tensor if its only reader saves it quantized
 *   gradient: GRADIENT_IN(scratch), GRADIENT_IN_PLACE, or NO_GRADIENT: no later operation reads
 *             it; the gradients of a gated SiLU and of a gate overwrite the activation */
#define LAYER_ACTIVATIONS(X)                                                                      \
    X(residual_in, "residual", RESIDUAL_STREAM, s->rows, s->n_embd, OWN(RECOMPUTE_NOT_SAVED),     \
      GRADIENT_IN(dresidual))                                                                     \
    X(ln1_out, "ln1", BETWEEN(LAYERNORM, QKV), s->rows, s->n_embd, READ_ONCE(RECOMPUTE_LAYER),    \
      GRADIENT_IN(dnorm))                                                                         \
    X(qkv_gate, "qkv_gate", BETWEEN(QKV, ATTENTION), s->attention_gate ? s->rows : 0,             \
      shape_projected(s), IN(dhidden, RECOMPUTE_LAYER), GRADIENT_IN(dhidden))                     \
    X(gate, "gate", BETWEEN(ATTENTION, ATTENTION_PROJECTION), s->attention_gate ? s->rows : 0,    \
      shape_q(s), OWN(RECOMPUTE_LAYER), NO_GRADIENT)                                              \
    X(qkv, "qkv", BETWEEN(QKV, ATTENTION), s->rows, shape_qkv(s), OWN(RECOMPUTE_LAYER),           \
      GRADIENT_IN(dqkv))                                                                          \
    X(qk_raw, "qk_raw", BETWEEN(QKV, ATTENTION), s->qk_norm && !s->qk_norm_whole ? s->rows : 0,   \
      shape_qk(s), OWN(RECOMPUTE_LAYER), NO_GRADIENT)                                             \
    X(q_raw, "q_raw", BETWEEN(QKV, ATTENTION), s->qk_norm_whole ? s->rows : 0, shape_q(s),        \
      OWN(RECOMPUTE_LAYER), NO_GRADIENT)                                                          \
    X(k_raw, "k_raw", BETWEEN(QKV, ATTENTION), s->qk_norm_whole ? s->rows : 0, shape_kv(s),       \
      OWN(RECOMPUTE_LAYER), NO_GRADIENT)                                                          \
    X(q_normed, "q_normed", BETWEEN(QKV, ATTENTION), s->qk_norm_whole ? s->rows : 0, shape_q(s),  \
      IN(branch, RECOMPUTE_LAYER), GRADIENT_IN(dnorm))                                            \
    X(convolved, "convolution", BETWEEN(QKV, ATTENTION), s->is_delta ? s->rows : 0,               \
      shape_convolved(s), OWN(RECOMPUTE_LAYER), GRADIENT_IN(dhidden))                             \
    X(delta_raw, "delta_rule", BETWEEN(QKV, ATTENTION), s->is_delta ? s->rows : 0,                \
      shape_values(s), OWN(RECOMPUTE_LAYER), NO_GRADIENT)                                         \
    X(delta_out, "delta_norm", BETWEEN(QKV, ATTENTION), s->is_delta ? s->rows : 0,                \
      shape_values(s), OWN(RECOMPUTE_LAYER), GRADIENT_IN(branch))                                 \
    X(attention_out, "attention", BETWEEN(ATTENTION, ATTENTION_PROJECTION),                       \
      s->is_delta ? 0 : s->rows, shape_q(s), OWN(RECOMPUTE_LAYER), GRADIENT_IN(dnorm))            \
    X(gated, "gated", BETWEEN(ATTENTION, ATTENTION_PROJECTION), shape_gates(s) ? s->rows : 0,     \
      shape_mixed(s), IN(dnorm, RECOMPUTE_LAYER), GRADIENT_IN(dnorm))                             \
    X(attention_projection_raw, "attention_projection_raw",                                       \
      BETWEEN(ATTENTION_PROJECTION, LAYERNORM), s->post_norm ? s->rows : 0, s->n_embd,            \
      OWN(RECOMPUTE_LAYER), GRADIENT_IN(dqkv))                                                    \
    X(attention_projection, "attention_projection", BETWEEN(ATTENTION_PROJECTION, LAYERNORM),     \
      s->rows, s->n_embd, IN(branch, RECOMPUTE_LAYER), GRADIENT_IN(dbranch))                      \
    X(residual_mid, "residual_mid", RESIDUAL_STREAM, s->rows, s->n_embd, OWN(RECOMPUTE_LAYER),    \
      GRADIENT_IN(dresidual))                                                                     \
    X(ln2_out, "ln2", BETWEEN(LAYERNORM, MLP_FC), s->rows, s->n_embd, READ_ONCE(RECOMPUTE_LAYER), \
      GRADIENT_IN(dnorm))                                                                         \
    X(mlp_fc, "mlp_fc", BETWEEN(MLP_FC, GELU), s->rows, shape_hidden(s), OWN(RECOMPUTE_LAYER),    \
      GRADIENT_IN(dhidden))                                                                       \
    X(mlp_activated, "gelu", BETWEEN(GELU, MLP_PROJECTION), s->rows, s->n_inner,                  \
      READ_ONCE(RECOMPUTE_GELU), NO_GRADIENT)                                                     \
    X(mlp_projection_raw, "mlp_projection_raw", BETWEEN(MLP_PROJECTION, LAYERNORM),               \
      s->post_norm ? s->rows : 0, s->n_embd, OWN(RECOMPUTE_LAYER), GRADIENT_IN(dqkv))             \
    X(mlp_projection, "mlp_projection", BETWEEN(MLP_PROJECTION, LAYERNORM), s->rows, s->n_embd,   \
      IN(branch, RECOMPUTE_NOT_SAVED), GRADIENT_IN(dbranch))

/* The same, once per model. Logits exist for a chunk of rows at a time. */
#define MODEL_ACTIVATIONS(X)                                                                      \
    X(residual_final, "residual_final", RESIDUAL_STREAM, s->rows, s->n_embd, OWN(RECOMPUTE_NONE), \
      GRADIENT_IN(dresidual))                                                                     \
    X(lnf_out, "ln_f", BETWEEN(LAYERNORM, LM_HEAD), s->rows, s->n_embd, OWN(RECOMPUTE_NONE),      \
      GRADIENT_IN(dnorm))                                                                         \
    X(logits, "lm_head", BETWEEN(LM_HEAD, CROSS_ENTROPY), s->logit_rows, s->padded_vocab,         \
      OWN(RECOMPUTE_NONE), GRADIENT_IN_PLACE)

/* X(field, elements, level): fp32 vectors of statistics, for each layer or for the model: means
 * and reciprocal standard deviations of norms, log-sum-exps of attention, losses of tokens. */
#define LAYER_STATISTICS(X)                                                  \
    X(ln1_mean, shape_means(s), RECOMPUTE_LAYER)                             \
    X(ln1_rstd, s->no_pre_norm ? 0 : s->rows, RECOMPUTE_LAYER)               \
    X(q_norm_rstd, s->qk_norm_whole ? s->rows : 0, RECOMPUTE_LAYER)          \
    X(k_norm_rstd, s->qk_norm_whole ? s->rows : 0, RECOMPUTE_LAYER)          \
    X(lse, s->is_delta ? 0 : s->rows * s->n_head, RECOMPUTE_LAYER)           \
    X(delta_states, s->is_delta ? shape_states(s) : 0, RECOMPUTE_LAYER)      \
    X(post_attention_norm_rstd, s->post_norm ? s->rows : 0, RECOMPUTE_LAYER) \
    X(ln2_mean, shape_means(s), RECOMPUTE_LAYER)                             \
    X(ln2_rstd, s->no_pre_norm ? 0 : s->rows, RECOMPUTE_LAYER)               \
    X(post_mlp_norm_rstd, s->post_norm ? s->rows : 0, RECOMPUTE_LAYER)
#define MODEL_STATISTICS(X)                     \
    X(lnf_mean, shape_means(s), RECOMPUTE_NONE) \
    X(lnf_rstd, s->rows, RECOMPUTE_NONE)        \
    X(losses, s->rows, RECOMPUTE_NONE)

/* Scratch buffers that several tensors share; each is as large as its largest tensor. branch holds
 * the output of attention or MLP, which is added to the residual stream. dbranch is the same memory
 * as dresidual if their dtypes agree. */
#define SCRATCH(X) X(branch) X(dresidual) X(dbranch) X(dnorm) X(dhidden) X(dqkv)

/* X(NAME, LAYERS(GPT-2's, Llama's, that of an MLP without a gate, Phi-3's, Granite 4's), site,
 * field of its weight, kinds of layers that have it): layers are names in Hugging Face's files
 * after "h.LAYER." or "model.layers.LAYER."; "": absent. */
#define ADAPTER_TARGETS(X)                                                                       \
    X(Q, LAYERS("attn.c_attn", "self_attn.q_proj", "", "self_attn.qkv_proj", ""), SITE_QKV,      \
      qkv_weight, IN_FULL)                                                                       \
    X(K, LAYERS("", "self_attn.k_proj", "", "", ""), SITE_QKV, k_weight, IN_FULL)                \
    X(V, LAYERS("", "self_attn.v_proj", "", "", ""), SITE_QKV, v_weight, IN_FULL)                \
    X(O, LAYERS("attn.c_proj", "self_attn.o_proj", "", "", ""), SITE_ATTENTION_PROJECTION,       \
      attention_projection_weight, IN_FULL)                                                      \
    X(GATE,                                                                                      \
      LAYERS("mlp.c_fc", "mlp.gate_proj", "mlp.up_proj", "mlp.gate_up_proj",                     \
             "shared_mlp.input_linear"),                                                         \
      SITE_MLP_FC, mlp_fc_weight, IN_FULL | IN_DELTA)                                            \
    X(UP, LAYERS("", "mlp.up_proj", "", "", ""), SITE_MLP_FC, mlp_up_weight, IN_FULL | IN_DELTA) \
    X(DOWN,                                                                                      \
      LAYERS("mlp.c_proj", "mlp.down_proj", "mlp.down_proj", "mlp.down_proj",                    \
             "shared_mlp.output_linear"),                                                        \
      SITE_MLP_PROJECTION, mlp_projection_weight, IN_FULL | IN_DELTA)                            \
    X(DELTA_QKV, LAYERS("", "linear_attn.in_proj_qkv", "", "", ""), SITE_QKV, qkv_weight,        \
      IN_DELTA)                                                                                  \
    X(DELTA_Z, LAYERS("", "linear_attn.in_proj_z", "", "", ""), SITE_QKV, z_weight, IN_DELTA)    \
    X(DELTA_B, LAYERS("", "linear_attn.in_proj_b", "", "", ""), SITE_QKV, b_weight, IN_DELTA)    \
    X(DELTA_A, LAYERS("", "linear_attn.in_proj_a", "", "", ""), SITE_QKV, a_weight, IN_DELTA)    \
    X(DELTA_OUT, LAYERS("", "linear_attn.out_proj", "", "", ""), SITE_ATTENTION_PROJECTION,      \
      attention_projection_weight, IN_DELTA)
