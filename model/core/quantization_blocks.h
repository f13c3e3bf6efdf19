/* Operands in blocks (recipe.dequantized): values in bf16 for a matmul, or codes that are saved for
 * the backward pass. Internal to quantization. */
#pragma once

#include "model/core/quantized_operand.h"

/* Rounds to values in bf16. */
struct operand quantization_dequantized_operand(const struct quantization *q,
                                                const struct quantized_operand *operand);

/* Saves an input as codes; its forward operand has not been made yet. */
void quantization_keep_blocks(const struct quantization *q,
                              const struct quantized_operand *operand);

/* Returns the values of a saved input. */
struct operand quantization_kept_blocks(const struct quantization *q,
                                        const struct quantized_operand *operand);
