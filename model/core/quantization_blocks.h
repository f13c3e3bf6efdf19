/* Operands in blocks (recipe.in_blocks): codes or values in bf16 for a matmul, and codes that are
 * saved for the backward pass. Internal to quantization. */
#pragma once

#include "model/core/quantized_operand.h"

/* Rounds to codes if the device multiplies them, else to values in bf16. */
struct operand quantization_block_operand(const struct quantization *q,
                                          const struct quantized_operand *operand);

/* Saves an input as codes; its forward operand has not been made yet. */
void quantization_keep_blocks(const struct quantization *q,
                              const struct quantized_operand *operand);

/* Returns a saved input, as codes or values. */
struct operand quantization_kept_blocks(const struct quantization *q,
                                        const struct quantized_operand *operand);
