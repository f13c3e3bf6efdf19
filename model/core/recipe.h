/* Recipes: the formats of the operands of linear layers' matmuls, and how scales are found.
 *
 *     forward         out = in W
 *     input gradient  din = dout W'
 *     weight gradient dW  = in' dout
 *
 * Formats are those of matrices whose columns the matmul reduces over; unused where a matmul does
 * not read an operand of the kind. */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"
#include "model/config/config.h"

enum quantized { QUANTIZED_INPUT, QUANTIZED_WEIGHT, QUANTIZED_GRADIENT, QUANTIZED_KINDS };

enum linear_matmul {
    MATMUL_FORWARD,
    MATMUL_INPUT_GRADIENT,
    MATMUL_WEIGHT_GRADIENT,
    LINEAR_MATMULS
};

struct recipe {
    struct quantize_format format[QUANTIZED_KINDS][LINEAR_MATMULS];
    bool delayed;   /* scales come from the amax history */
    bool hadamard;  /* operands of the weight gradient are transformed first */
    bool in_blocks; /* formats are those of quantize_format_in_blocks */
    bool scaled;    /* matmuls multiply sums by scales */
};

/* Returns the recipe of the config for a precision that quantizes (config_precision_quantizes). */
struct recipe recipe_of(const struct config *config, enum config_precision precision);

/* True if the device multiplies all operands as they are stored; else it multiplies their values in
 * bf16, or on a CPU in fp32. */
bool recipe_is_native(const struct recipe *recipe, const struct backend *be);
