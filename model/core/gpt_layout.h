/* Where the tensors of a model are in its memory. Both layouts are called once to measure, with
 * arenas without memory, and then to assign addresses. */
#pragma once

#include "model/core/gpt.h"

/* Lays out weights and gradients, and what of them is in host memory; sets gpt's tensors of them
 * and their sizes in gpt->memory. */
void gpt_layout_parameters(struct gpt *gpt, struct arena *arena, struct arena *host);

/* Lays out the activations of the current batch. The host memory of saved ones is gpt->saved.host.
 */
void gpt_layout_activations(struct gpt *gpt, struct arena *arena);

/* Returns the gradients of elements first .. first + count of the flat order, all of the layers or
 * none: between steps and in an update, those that are streamed are in host memory. */
struct tensor gpt_gradients(const struct gpt *gpt, int64_t first, int64_t count);

/* Returns a parameter's gradient there, without padding rows. */
struct tensor gpt_gradient(const struct gpt *gpt, const struct parameter *parameter);
