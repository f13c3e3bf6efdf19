/* The forward pass: tokens in activations.tokens -> activations.lnf_out, and the head on top.
 *
 * With x the residual stream, a layer is
 *     x += attention_projection(attention(qkv(norm(x))))
 *     x += mlp_projection(gelu(mlp_fc(norm(x))))
 * and each addition happens inside the norm that follows it. Which parts stand for norm and gelu,
 * and whether q and k are turned (rope), the shape says: model/architecture/parts.h. */
#pragma once

#include "model/core/gpt.h"

/* Runs all layers on the batch in place. */
void gpt_forward(struct gpt *gpt);

/* The same for a batch of one sequence, in parts: rows 0..rows-1, and then one row after the other,
 * each seeing those before it through the keys and values that earlier calls left (gpt_cache).
 * Models opened for GPT_SAMPLING keep these, and those in training, but with
 * train.recompute "layer" only if the config has them sample (see gpt->has_cache). */
void gpt_prefill(struct gpt *gpt, int64_t rows);
void gpt_decode(struct gpt *gpt, int64_t row);

/* After gpt_forward, from the last layer to the first: computes what the layer shares with others
 * once more, to the same bits (see gpt->sharing). The last layer's is still there. */
void gpt_recompute(struct gpt *gpt, int64_t layer);

/* After gpt_forward: fills activations.losses with the loss of each token. The logits, made a
 * chunk of rows at a time, are turned into their gradient at once when loss_scale is given
 * (backend memory): then activations.gradients.lnf_out is filled, and the gradient of
 * the head's weights becomes this part of it, or gains it (see gpt->accumulate). Gradients are
 * those of weight * *loss_scale * sum(losses). */
void gpt_loss(struct gpt *gpt, const float *loss_scale, float weight);

/* After any of these: the logits of one row, in row 0 of activations.logits. */
void gpt_logits(struct gpt *gpt, int64_t row);
