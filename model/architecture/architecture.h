/* The architecture, declared once: its sizes, autocast's sites, its parameters and its activations.
 *
 * All code that depends on the architecture expands these lists: the option table, resolved dtypes,
 * memory layout, initialization, optimizer groups, files, counts of parameters and arithmetic, and
 * the tensors of an audit. Only model/core/forward.c and model/core/backward.c are written by hand.
 *
 * Shapes are written with a struct gpt_shape in scope as `s`:
 *   s->padded_vocab  V   s->n_embd  C   s->rows  N = B * T   s->n_head  H   s->n_kv_head  Hkv
 *   s->head_dim  D       s->n_inner  I */
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

/* X(type, part): the parts of the transformer, keys of the same block. model/architecture/parts.h
 * declares the types. */
#define MODEL_PARTS(X)                  \
    X(enum model_norm, norm)            \
    X(double, norm_eps)                 \
    X(bool, norm_zero_centered)         \
    X(bool, post_norm)                  \
    X(enum model_positions, positions)  \
    X(double, rope_theta)               \
    X(double, rope_theta_window)        \
    X(enum rope_scaling, rope_scaling)  \
    X(double, rope_factor)              \
    X(double, rope_low_freq_factor)     \
    X(double, rope_high_freq_factor)    \
    X(int64_t, rope_original_positions) \
    X(double, rope_attention_factor)    \
    X(double, rope_beta_fast)           \
    X(double, rope_beta_slow)           \
    X(bool, rope_truncate)              \
    X(bool, qk_norm)                    \
    X(double, query_pre_attn_scalar)    \
    X(double, attention_softcap)        \
    X(double, logit_softcap)            \
    X(bool, scale_embedding)            \
    X(int64_t, window)                  \
    X(int64_t, window_from)             \
    X(int64_t, window_pattern)          \
    X(enum model_mlp, mlp)              \
    X(enum model_bias, bias)            \
    X(bool, tied_head)

/* X(SITE, name in autocast.float32, policy): an operation whose dtype autocast determines.
 *   LOWER    the low precision dtype, unless the config keeps it in fp32
 *   LINEAR   the same; a linear layer of a block, whose operands fp8 rounds to 8 bits
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

/* X(field, GPT-2's name, Llama's name, extent, site that reads it, group, init, gradient)
 *   names: in Hugging Face's files. A model that is GPT-2 in all its parts has GPT-2's, any other
 *          Llama's (shape_is_gpt2); NONE: absent in that family
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
    X(wte, "wte.weight", "model.embed_tokens.weight",                                              \
      TABLE(s->padded_vocab, s->vocab_size, s->n_embd, "model.vocab_size"),                        \
      s->tied_head ? SITE_LM_HEAD : SITE_EMBEDDING, DECAYED, 0.02f, s->tied_head ? MATMUL : ADDED) \
    X(lm_head, NONE, "lm_head.weight",                                                             \
      IF(!s->tied_head, TABLE(s->padded_vocab, s->vocab_size, s->n_embd, "model.vocab_size")),     \
      SITE_LM_HEAD, DECAYED, 0.02f, MATMUL)                                                        \
    X(wpe, "wpe.weight", "model.embed_positions.weight",                                           \
      IF(s->positions == POSITIONS_LEARNED,                                                        \
         TABLE(s->n_positions, s->n_positions, s->n_embd, "model.n_positions")),                   \
      SITE_EMBEDDING, DECAYED, 0.02f, ADDED)                                                       \
    X(lnf_weight, "ln_f.weight", "model.norm.weight", VECTOR(s->n_embd), SITE_LAYERNORM,           \
      NOT_DECAYED, INIT_NORM(s), ADDED)                                                            \
    X(lnf_bias, "ln_f.bias", "model.norm.bias", IF(s->norm == NORM_LAYERNORM, VECTOR(s->n_embd)),  \
      SITE_LAYERNORM, NOT_DECAYED, INIT_ZERO, ADDED)

/* The same for each layer. GPT-2's names follow "h.LAYER.", Llama's "model.layers.LAYER.". */
#define LAYER_PARAMETERS(X)                                                                       \
    X(ln1_weight, "ln_1.weight", "input_layernorm.weight", VECTOR(s->n_embd), SITE_LAYERNORM,     \
      NOT_DECAYED, INIT_NORM(s), ADDED)                                                           \
    X(ln1_bias, "ln_1.bias", "input_layernorm.bias",                                              \
      IF(s->norm == NORM_LAYERNORM, VECTOR(s->n_embd)), SITE_LAYERNORM, NOT_DECAYED, INIT_ZERO,   \
      ADDED)                                                                                      \
    X(qkv_weight, "attn.c_attn.weight", "self_attn.q_proj.weight",                                \
      MATRIX(s->n_embd, s->weights_out_in ? shape_q(s) : shape_qkv(s)), SITE_QKV, DECAYED, 0.02f, \
      MATMUL)                                                                                     \
    X(k_weight, NONE, "self_attn.k_proj.weight", MATRIX(s->n_embd, shape_kv(s)), SITE_QKV,        \
      DECAYED, 0.02f, FUSED_WITH_PREVIOUS)                                                        \
    X(v_weight, NONE, "self_attn.v_proj.weight", MATRIX(s->n_embd, shape_kv(s)), SITE_QKV,        \
      DECAYED, 0.02f, FUSED_WITH_PREVIOUS)                                                        \
    X(qkv_bias, "attn.c_attn.bias", "self_attn.q_proj.bias",                                      \
      IF(s->bias != BIAS_NONE, VECTOR(s->weights_out_in ? shape_q(s) : shape_qkv(s))), SITE_QKV,  \
      NOT_DECAYED, INIT_ZERO, ADDED)                                                              \
    X(k_bias, NONE, "self_attn.k_proj.bias", IF(s->bias != BIAS_NONE, VECTOR(shape_kv(s))),       \
      SITE_QKV, NOT_DECAYED, INIT_ZERO, FUSED_WITH_PREVIOUS)                                      \
    X(v_bias, NONE, "self_attn.v_proj.bias", IF(s->bias != BIAS_NONE, VECTOR(shape_kv(s))),       \
      SITE_QKV, NOT_DECAYED, INIT_ZERO, FUSED_WITH_PREVIOUS)                                      \
    X(q_norm_weight, NONE, "self_attn.q_norm.weight", IF(s->qk_norm, VECTOR(s->head_dim)),        \
      SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)                                           \
    X(k_norm_weight, NONE, "self_attn.k_norm.weight", IF(s->qk_norm, VECTOR(s->head_dim)),        \
      SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)                                           \
    X(attention_projection_weight, "attn.c_proj.weight", "self_attn.o_proj.weight",               \
      MATRIX(shape_q(s), s->n_embd), SITE_ATTENTION_PROJECTION, DECAYED,                          \
      0.02f / sqrtf(2.0f * (float)s->n_layer), MATMUL)                                            \
    X(attention_projection_bias, "attn.c_proj.bias", "self_attn.o_proj.bias",                     \
      IF(s->bias == BIAS_ALL, VECTOR(s->n_embd)), SITE_ATTENTION_PROJECTION, NOT_DECAYED,         \
      INIT_ZERO, ADDED)                                                                           \
    X(post_attention_norm_weight, NONE, "post_attention_layernorm.weight",                        \
      IF(s->post_norm, VECTOR(s->n_embd)), SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)      \
    X(ln2_weight, "ln_2.weight",                                                                  \
      s->post_norm ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight",      \
      VECTOR(s->n_embd), SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)                        \
    X(ln2_bias, "ln_2.bias",                                                                      \
      s->post_norm ? "pre_feedforward_layernorm.bias" : "post_attention_layernorm.bias",          \
      IF(s->norm == NORM_LAYERNORM, VECTOR(s->n_embd)), SITE_LAYERNORM, NOT_DECAYED, INIT_ZERO,   \
      ADDED)                                                                                      \
    X(mlp_fc_weight, "mlp.c_fc.weight", "mlp.gate_proj.weight", MATRIX(s->n_embd, s->n_inner),    \
      SITE_MLP_FC, DECAYED, 0.02f, MATMUL)                                                        \
    X(mlp_up_weight, NONE, "mlp.up_proj.weight",                                                  \
      IF(mlp_is_gated(s->mlp), MATRIX(s->n_embd, s->n_inner)), SITE_MLP_FC, DECAYED, 0.02f,       \
      FUSED_WITH_PREVIOUS)                                                                        \
    X(mlp_fc_bias, "mlp.c_fc.bias", "mlp.gate_proj.bias",                                         \
      IF(s->bias == BIAS_ALL, VECTOR(s->n_inner)), SITE_MLP_FC, NOT_DECAYED, INIT_ZERO, ADDED)    \
    X(mlp_up_bias, NONE, "mlp.up_proj.bias",                                                      \
      IF(mlp_is_gated(s->mlp) && s->bias == BIAS_ALL, VECTOR(s->n_inner)), SITE_MLP_FC,           \
      NOT_DECAYED, INIT_ZERO, FUSED_WITH_PREVIOUS)                                                \
    X(mlp_projection_weight, "mlp.c_proj.weight", "mlp.down_proj.weight",                         \
      MATRIX(s->n_inner, s->n_embd), SITE_MLP_PROJECTION, DECAYED,                                \
      0.02f / sqrtf(2.0f * (float)s->n_layer), MATMUL)                                            \
    X(mlp_projection_bias, "mlp.c_proj.bias", "mlp.down_proj.bias",                               \
      IF(s->bias == BIAS_ALL, VECTOR(s->n_embd)), SITE_MLP_PROJECTION, NOT_DECAYED, INIT_ZERO,    \
      ADDED)                                                                                      \
    X(post_mlp_norm_weight, NONE, "post_feedforward_layernorm.weight",                            \
      IF(s->post_norm, VECTOR(s->n_embd)), SITE_LAYERNORM, NOT_DECAYED, INIT_NORM(s), ADDED)

/* X(field, name in an audit, dtype, rows, columns, memory, gradient), in the order of the forward
 * pass. The gradient has the tensor's dtype and shape.
 *   dtype: BETWEEN(site that writes it, site that reads it), or the RESIDUAL_STREAM's
 *   memory: OWN(level), one tensor for each layer, or IN(scratch, level). From this level of enum
 *           recompute on (model/architecture/activations.h) the layers share one tensor, and the
 *           backward pass recomputes it. READ_ONCE(level) is OWN, except that layers also share
 *           the tensor if its only reader saves it in 8 bits (fp8)
 *   gradient: GRADIENT_IN(scratch), GRADIENT_IN_PLACE, or NO_GRADIENT: no later operation reads
 *             it; the gradient of a gated SiLU overwrites the activation */
#define LAYER_ACTIVATIONS(X)                                                                      \
    X(residual_in, "residual", RESIDUAL_STREAM, s->rows, s->n_embd, OWN(RECOMPUTE_NOT_SAVED),     \
      GRADIENT_IN(dresidual))                                                                     \
    X(ln1_out, "ln1", BETWEEN(LAYERNORM, QKV), s->rows, s->n_embd, READ_ONCE(RECOMPUTE_LAYER),    \
      GRADIENT_IN(dnorm))                                                                         \
    X(qkv, "qkv", BETWEEN(QKV, ATTENTION), s->rows, shape_qkv(s), OWN(RECOMPUTE_LAYER),           \
      GRADIENT_IN(dqkv))                                                                          \
    X(qk_raw, "qk_raw", BETWEEN(QKV, ATTENTION), s->qk_norm ? s->rows : 0, shape_qk(s),           \
      OWN(RECOMPUTE_LAYER), NO_GRADIENT)                                                          \
    X(attention_out, "attention", BETWEEN(ATTENTION, ATTENTION_PROJECTION), s->rows, shape_q(s),  \
      OWN(RECOMPUTE_LAYER), GRADIENT_IN(dnorm))                                                   \
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
    X(mlp_gelu, "gelu", BETWEEN(GELU, MLP_PROJECTION), s->rows, s->n_inner,                       \
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
    X(ln1_rstd, s->rows, RECOMPUTE_LAYER)                                    \
    X(lse, s->rows * s->n_head, RECOMPUTE_LAYER)                             \
    X(post_attention_norm_rstd, s->post_norm ? s->rows : 0, RECOMPUTE_LAYER) \
    X(ln2_mean, shape_means(s), RECOMPUTE_LAYER)                             \
    X(ln2_rstd, s->rows, RECOMPUTE_LAYER)                                    \
    X(post_mlp_norm_rstd, s->post_norm ? s->rows : 0, RECOMPUTE_LAYER)
#define MODEL_STATISTICS(X)                     \
    X(lnf_mean, shape_means(s), RECOMPUTE_NONE) \
    X(lnf_rstd, s->rows, RECOMPUTE_NONE)        \
    X(losses, s->rows, RECOMPUTE_NONE)

/* Scratch buffers that several tensors share; each is as large as its largest tensor. branch holds
 * the output of attention or MLP, which is added to the residual stream. dbranch is the same memory
 * as dresidual if their dtypes agree. */
#define SCRATCH(X) X(branch) X(dresidual) X(dbranch) X(dnorm) X(dhidden) X(dqkv)

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
