/* The forward pass: activations.tokens -> activations.lnf_out, and the head after it.
 *
 * With x the residual stream, a layer is
 *     x += attention_projection(attention(qkv(norm(x))))
 *     x += mlp_projection(gelu(mlp_fc(norm(x))))
 * and each addition is fused into the norm that follows it. The shape determines the kinds of norm
 * and gelu, and whether q and k are rotated (rope): model/architecture/parts.h. */
#pragma once

#include "model/core/gpt.h"

/* Runs all layers on the current batch. */
void gpt_forward(struct gpt *gpt);

/* Run all layers on a batch of one sequence in parts: first rows 0..rows-1, then single rows. Later
 * rows attend to earlier ones through the saved keys and values (gpt_cache). Models for sampling
 * and for training save these; with train.recompute "layer" only if the config enables sampling
 * (see gpt->has_cache). */
void gpt_prefill(struct gpt *gpt, int64_t rows);
void gpt_decode(struct gpt *gpt, int64_t row);

/* Recomputes the activations that a layer shares with others, bit for bit the same (see
 * gpt->recompute). Call it after gpt_forward, from the last layer, whose activations are still
 * valid, to the first. */
void gpt_recompute(struct gpt *gpt, int64_t layer);

/* Fills activations.losses with the loss of each token, after gpt_forward. Logits are computed a
 * chunk of rows at a time. If loss_scale (backend memory) is given, each chunk is replaced by its
 * gradient, from which activations.gradients.lnf_out and the gradient of the head's weights are
 * computed (see gpt->accumulate). Gradients are those of loss_weight * *loss_scale *
 * sum(losses), where the loss weight came with the batch. */
void gpt_loss(struct gpt *gpt, const float *loss_scale);

/* Computes the logits of one row into row 0 of activations.logits, after any of the passes
 * above. */
void gpt_logits(struct gpt *gpt, int64_t row);
