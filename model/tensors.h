/* Every tensor of the model, declared once.
 *
 * Structs, layout, initialization, checkpoint names and optimizer groups all expand from these
 * lists. Shapes are written with the dimensions of struct gpt_shape in scope as `s`:
 *   V  s->padded_vocab   C  s->n_embd   T  s->sequence_length   N  s->rows = B * T */
#ifndef MODEL_TENSORS_H
#define MODEL_TENSORS_H

/* X(field, Hugging Face name, rows, columns (0: a vector), operation that reads it, decay, init)
 *   decay: weight decay applies, as usual to matrices only
 *   init: the standard deviation of a normal distribution, or INIT_ONE, or INIT_ZERO. Projections
 *         onto the residual stream start smaller, by 1 / sqrt(2 layers) (Radford et al. 2019). */
#define MODEL_PARAMETERS(X)                                                 \
    X(wte, "wte.weight", s->padded_vocab, s->n_embd, LM_HEAD, true, 0.02f)  \
    X(wpe, "wpe.weight", s->n_positions, s->n_embd, EMBEDDING, true, 0.02f) \
    X(lnf_weight, "ln_f.weight", s->n_embd, 0, LAYERNORM, false, INIT_ONE)  \
    X(lnf_bias, "ln_f.bias", s->n_embd, 0, LAYERNORM, false, INIT_ZERO)

/* The same for each layer; Hugging Face names follow "h.LAYER.". */
#define LAYER_PARAMETERS(X)                                                                       \
    X(ln1_weight, "ln_1.weight", s->n_embd, 0, LAYERNORM, false, INIT_ONE)                        \
    X(ln1_bias, "ln_1.bias", s->n_embd, 0, LAYERNORM, false, INIT_ZERO)                           \
    X(qkv_weight, "attn.c_attn.weight", s->n_embd, 3 * s->n_embd, QKV, true, 0.02f)               \
    X(qkv_bias, "attn.c_attn.bias", 3 * s->n_embd, 0, QKV, false, INIT_ZERO)                      \
    X(attention_projection_weight, "attn.c_proj.weight", s->n_embd, s->n_embd,                    \
      ATTENTION_PROJECTION, true, 0.02f / sqrtf(2.0f * (float)s->n_layer))                        \
    X(attention_projection_bias, "attn.c_proj.bias", s->n_embd, 0, ATTENTION_PROJECTION, false,   \
      INIT_ZERO)                                                                                  \
    X(ln2_weight, "ln_2.weight", s->n_embd, 0, LAYERNORM, false, INIT_ONE)                        \
    X(ln2_bias, "ln_2.bias", s->n_embd, 0, LAYERNORM, false, INIT_ZERO)                           \
    X(mlp_fc_weight, "mlp.c_fc.weight", s->n_embd, 4 * s->n_embd, MLP_FC, true, 0.02f)            \
    X(mlp_fc_bias, "mlp.c_fc.bias", 4 * s->n_embd, 0, MLP_FC, false, INIT_ZERO)                   \
    X(mlp_projection_weight, "mlp.c_proj.weight", 4 * s->n_embd, s->n_embd, MLP_PROJECTION, true, \
      0.02f / sqrtf(2.0f * (float)s->n_layer))                                                    \
    X(mlp_projection_bias, "mlp.c_proj.bias", s->n_embd, 0, MLP_PROJECTION, false, INIT_ZERO)

/* X(field, dtype, rows, columns, shared): what the forward pass of one layer leaves for the
 * backward pass. Statistics are vectors of fp32. `p` is the struct precision in scope.
 *   shared: from this level of sharing on (enum sharing in model/gpt.h) the layers take turns in
 *           one tensor, and the backward pass computes it once more */
#define LAYER_ACTIVATIONS(X)                                            \
    X(residual_in, p->residual, s->rows, s->n_embd, SHARE_ALL)          \
    X(ln1_mean, DTYPE_F32, s->rows, 0, SHARE_LAYER)                     \
    X(ln1_rstd, DTYPE_F32, s->rows, 0, SHARE_LAYER)                     \
    X(ln1_out, p->ln1_out, s->rows, s->n_embd, SHARE_LAYER)             \
    X(qkv, p->qkv, s->rows, 3 * s->n_embd, SHARE_LAYER)                 \
    X(lse, DTYPE_F32, s->rows * s->n_head, 0, SHARE_LAYER)              \
    X(attention_out, p->attention_out, s->rows, s->n_embd, SHARE_LAYER) \
    X(residual_mid, p->residual, s->rows, s->n_embd, SHARE_LAYER)       \
    X(ln2_mean, DTYPE_F32, s->rows, 0, SHARE_LAYER)                     \
    X(ln2_rstd, DTYPE_F32, s->rows, 0, SHARE_LAYER)                     \
    X(ln2_out, p->ln2_out, s->rows, s->n_embd, SHARE_LAYER)             \
    X(mlp_fc, p->mlp_fc, s->rows, 4 * s->n_embd, SHARE_LAYER)           \
    X(mlp_gelu, p->mlp_gelu, s->rows, 4 * s->n_embd, SHARE_GELU)

/* The same, once per model. Logits exist for a chunk of rows at a time. */
#define MODEL_ACTIVATIONS(X)                             \
    X(residual_final, p->residual, s->rows, s->n_embd)   \
    X(lnf_mean, DTYPE_F32, s->rows, 0)                   \
    X(lnf_rstd, DTYPE_F32, s->rows, 0)                   \
    X(lnf_out, p->lnf_out, s->rows, s->n_embd)           \
    X(losses, DTYPE_F32, s->rows, 0)                     \
    X(logits, p->logits, s->logit_rows, s->padded_vocab) \
    X(branch, dtype_wider(p->attention_projection, p->mlp_projection), s->rows, s->n_embd)

/* Gradients of activations, shared by all layers. branch and dbranch are what attention or MLP
 * add to the residual stream (dbranch is dresidual itself where dtypes agree); dnorm is the
 * gradient of a layer norm's or of attention's output. Where uses differ in dtype the wider one
 * gives the size. */
#define BACKWARD_ACTIVATIONS(X)                                                                    \
    X(dresidual, p->residual, s->rows, s->n_embd)                                                  \
    X(dbranch, dtype_wider(p->attention_projection, p->mlp_projection),                            \
      precision_branch_is_residual(p) ? 0 : s->rows, s->n_embd)                                    \
    X(dnorm,                                                                                       \
      dtype_wider(dtype_wider(p->ln1_out, p->ln2_out), dtype_wider(p->attention_out, p->lnf_out)), \
      s->rows, s->n_embd)                                                                          \
    X(dhidden, p->mlp_fc, s->rows, 4 * s->n_embd)                                                  \
    X(dqkv, p->qkv, s->rows, 3 * s->n_embd)

#endif
