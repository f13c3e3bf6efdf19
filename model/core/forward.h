/* The forward pass: activations.tokens -> activations.lnf_out, and the head after it.
 *
 * With x the residual stream, a layer is
 *     x += attention_projection(attention(qkv(norm(x))))
 *     x += mlp_projection(gelu(mlp_fc(norm(x))))
 * and each addition is fused into the norm that follows it. The shape determines the kinds of norm
 * and gelu, and whether q and k are rotated (rope): model/architecture/parts.h. */
#pragma once

#include "model/core/added_rows.h"
#include "model/core/gpt.h"

/* Runs all layers on the current batch. */
void gpt_forward(struct gpt *gpt);

/* Runs all layers on the first `rows` rows of a batch of one sequence, and stores their keys and
 * values as rows cache_row and following of the cache (gpt_cache). Models for sampling have a
 * cache, and models for training if the config enables sampling; without train.recompute "layer" it
 * is the activations' qkv, and cache_row is 0. */
void gpt_prefill(struct gpt *gpt, int64_t rows, int64_t cache_row);

/* Runs all layers on rows that continue texts in the cache, and stores their keys and values there.
 * Their arrays lie in gpt->added. The rows become rows 0 and following of the activations or, if
 * those are the cache, rows cache_row and following. Returns the first of them, for gpt_logits. */
int64_t gpt_extend(struct gpt *gpt, const struct added *added);

/* Recomputes the activations that a layer shares with others, bit for bit the same (see
 * gpt->recompute). Call it after gpt_forward, from the last layer, whose activations are still
 * valid, to the first. */
void gpt_recompute(struct gpt *gpt, int64_t layer);

/* Fills activations.losses with the loss of each token, or of each pair in its first row, after
 * gpt_forward. Logits are computed a chunk of rows at a time. If loss_scale (backend memory) is
 * given, each chunk is replaced by its gradient, from which activations.gradients.lnf_out and the
 * gradient of the head's weights are computed (see gpt->accumulate). Gradients are those of
 * loss_weight * *loss_scale * sum(losses), where the loss weight came with the batch. Pairs are
 * added to *sums (backend memory), and take a second pass over the head for the gradients, because
 * each depends on all tokens of its pair. */
void gpt_loss(struct gpt *gpt, const float *loss_scale, struct preference_sums *sums);

/* Computes the losses of rows first and following alone; the losses before them are undefined. */
void gpt_losses(struct gpt *gpt, int64_t first);

/* Computes the logits of `rows` rows, at most shape.logit_rows, into rows 0 and following of
 * activations.logits, after any of the passes above. */
void gpt_logits(struct gpt *gpt, int64_t first, int64_t rows);
