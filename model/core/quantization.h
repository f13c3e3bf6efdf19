/* Quantizes the operands of linear layers to 8 or 4 bits before each matmul.
 *
 * A linear layer of a block has the same bf16 operands as in bf16, and quantizes them (the
 * operation quantize in kernels/kernels.h). A recipe (recipe.h) is a table of formats: one for each
 * operand of each matmul.
 * In "row" a scale belongs to the elements that one result of the matmul sums over, so an operand
 * has other scales in each of its two matmuls and is quantized twice. The other recipes have one
 * scale per tensor: from its own amax ("tensor"), or from the largest amax of previous steps
 * ("delayed"; the tensor's own until there is one).
 *
 * Other formats have a scale for each block of elements that a result sums over. Their matmuls read
 * codes and scales on devices that multiply them, else the values in bf16, which represents them
 * exactly (fake_quantize). In nvfp4 gradients are rounded
 * stochastically, and the operands of weight gradients pass a Hadamard transform first.
 *
 * Norms and the MLP's activation function track the amax of the tensors that they write, in both
 * passes. The amax of weights and of tensors written by attention is computed when they are first
 * quantized in a pass. Bias gradients are sums of unquantized values. */
#pragma once

#include "model/core/quantized_operand.h"

/* Nothing is quantized unless precision->fp8. keeps: linear layers whose quantized input is saved
 * for the backward pass; keeps_weights: quantized weights are kept for all micro-batches of a step.
 */
int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], bool keeps_weights, struct error *error);
void quantization_close(struct quantization *quantization);

/* Lays out the memory for a batch of this shape; called once to measure and once to assign
 * addresses. */
void quantization_layout(struct quantization *quantization, struct arena *arena,
                         const struct gpt_shape *shape);

/* Clears the records and the amax history. */
void quantization_clear(const struct quantization *quantization);

/* Quantizes an operand into a buffer that the next operand of its kind reuses, or a weight into its
 * own memory if it is kept and not there yet. For tensor cores, an operand that a matmul reduces
 * over rows is transposed. A gradient for MATMUL_WEIGHT_GRADIENT serves both of its matmuls if
 * quantization_serves_both. */
struct operand quantization_round(const struct quantization *quantization,
                                  const struct quantized_operand *operand);

/* Returns the blocks of an operand of codes, or NULL. */
static inline const struct matmul_blocks *operand_blocks(const struct operand *operand) {
    return operand->blocks.scales.rank ? &operand->blocks : NULL;
}

/* Return the quantized input of a linear layer for the matmul of the forward pass, and for that of
 * the weight gradient. An input that is saved is quantized for both in the forward pass. */
struct operand quantization_input(const struct quantization *quantization, enum autocast_site site,
                                  int64_t layer, const struct tensor *in, bool repeated);
struct operand quantization_input_backward(const struct quantization *quantization,
                                           enum autocast_site site, int64_t layer,
                                           const struct tensor *in);

/* Returns the amax for the operation that writes an operand's tensor to track, or NULL. */
struct amax *quantization_amax(const struct quantization *quantization, enum quantized kind,
                               enum autocast_site site, int64_t layer);

/* Returns the operand as its only matmul reads it, or, if it serves two, as the one that reduces
 * over rows does. The other reads `stored`. */
static inline const struct scaled_tensor *operand_over_rows(const struct operand *operand) {
    return operand->transposed.values.rank ? &operand->transposed : &operand->stored;
}
static inline bool operand_is_transposed(const struct operand *operand) {
    return operand->transposed.values.rank > 0;
}

/* Clears the tracked amax; called before each forward pass. */
void quantization_begin_pass(const struct quantization *quantization);

/* Clear the records before the first micro-batch of a step; after the last one, merge the records
 * of all ranks into the state and the history. */
void quantization_begin_step(const struct quantization *quantization);
void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           const struct step_inputs *inputs);
