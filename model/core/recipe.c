#include "model/core/recipe.h"

#include <assert.h>

/* Returns a format of `rows` x `columns` elements a block. */
static struct quantize_format format_of(enum dtype element, int64_t rows, int64_t columns,
                                        enum dtype scale, enum scale_rounding rounding) {
    return (struct quantize_format){
        .element = element, .rows = rows, .columns = columns, .scale = scale, .rounding = rounding};
}

/* Sets the formats of all operands: those of forward operands, of weights, and of gradients. */
static void set_formats(struct recipe *recipe, struct quantize_format input,
                        struct quantize_format weight, struct quantize_format gradient) {
    recipe->format[QUANTIZED_INPUT][MATMUL_FORWARD] = input;
    recipe->format[QUANTIZED_INPUT][MATMUL_WEIGHT_GRADIENT] = input;
    recipe->format[QUANTIZED_WEIGHT][MATMUL_FORWARD] = weight;
    recipe->format[QUANTIZED_WEIGHT][MATMUL_INPUT_GRADIENT] = weight;
    recipe->format[QUANTIZED_GRADIENT][MATMUL_INPUT_GRADIENT] = gradient;
    recipe->format[QUANTIZED_GRADIENT][MATMUL_WEIGHT_GRADIENT] = gradient;
}

/* Rows of the fp8 table, in the order of enum config_recipe. */
static const struct {
    enum dtype forward, gradient, scale;
    int64_t rows, columns, weight_rows;
    enum scale_rounding rounding;
    bool delayed;
} fp8_recipes[] = {
#define X(NAME, name, scales, forward, gradient, scale, rows, columns, weight_rows, rounding, \
          delayed)                                                                            \
    [CONFIG_RECIPE_##NAME] = {DTYPE_##forward, DTYPE_##gradient, DTYPE_##scale, rows,         \
                              columns,         weight_rows,      rounding,      delayed},
    RECIPES(X)
#undef X
};

static void resolve_fp8(struct recipe *recipe, const struct config *config) {
    enum config_recipe row = config->fp8.recipe;
    int64_t columns = fp8_recipes[row].columns;
    enum dtype scale = fp8_recipes[row].scale, forward = fp8_recipes[row].forward;
    enum dtype gradient =
        config->fp8.format == CONFIG_FORMAT_E4M3 ? forward : fp8_recipes[row].gradient;
    enum scale_rounding rounding =
        config->fp8.power_of_two ? SCALE_POWER_OF_TWO : fp8_recipes[row].rounding;
    set_formats(recipe, format_of(forward, fp8_recipes[row].rows, columns, scale, rounding),
                format_of(forward, fp8_recipes[row].weight_rows, columns, scale, rounding),
                format_of(gradient, fp8_recipes[row].rows, columns, scale, rounding));
    recipe->delayed = fp8_recipes[row].delayed;
}

static void resolve_mx(struct recipe *recipe, const struct config *config, enum dtype element) {
    bool hybrid = element == DTYPE_E4M3 && config->mx.format == CONFIG_FORMAT_HYBRID;
    enum scale_rounding rounding =
        config->mx.scales == CONFIG_SCALES_UP ? SCALE_POWER_OF_TWO : SCALE_OF_EXPONENT;
    struct quantize_format forward = format_of(element, 1, 32, DTYPE_E8M0, rounding);
    struct quantize_format gradient = forward;
    if (hybrid) gradient.element = DTYPE_E5M2;
    set_formats(recipe, forward, forward, gradient);
}

/* NVIDIA 2025, "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149). */
static void resolve_nvfp4(struct recipe *recipe, const struct config *config) {
    struct quantize_format input = format_of(DTYPE_E2M1, 1, 16, DTYPE_E4M3, SCALE_NEAREST);
    struct quantize_format weight = input, gradient = input;
    if (config->nvfp4.square_blocks) weight.rows = 16;
    gradient.stochastic = config->nvfp4.stochastic_rounding;
    set_formats(recipe, input, weight, gradient);
    recipe->hadamard = config->nvfp4.hadamard;
}

struct recipe recipe_of(const struct config *config, enum config_precision precision) {
    struct recipe recipe = {.delayed = false};
    switch (precision) {
    case CONFIG_PRECISION_FP8: resolve_fp8(&recipe, config); break;
    case CONFIG_PRECISION_MXFP8: resolve_mx(&recipe, config, DTYPE_E4M3); break;
    case CONFIG_PRECISION_MXFP4: resolve_mx(&recipe, config, DTYPE_E2M1); break;
    case CONFIG_PRECISION_NVFP4: resolve_nvfp4(&recipe, config); break;
    default: assert(false);
    }
    const struct quantize_format *input = &recipe.format[QUANTIZED_INPUT][MATMUL_FORWARD];
    recipe.in_blocks = quantize_format_in_blocks(input);
    recipe.scaled = !recipe.in_blocks || quantize_format_has_tensor_scale(input);
    return recipe;
}

bool recipe_is_native(const struct recipe *recipe, const struct backend *be) {
    if (!recipe->in_blocks) return be->device.native_8_bit;
    for (int i = 0; i < QUANTIZED_KINDS * LINEAR_MATMULS; i++) {
        const struct quantize_format *format =
            &recipe->format[i / LINEAR_MATMULS][i % LINEAR_MATMULS];
        if (format->columns && !backend_multiplies_blocks(be, format)) return false;
    }
    return true;
}
