/* Recipes: the formats that settings select, and training with each piece of NVFP4's taken away. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "model/config/config_keys.h"
#include "model/core/precision.h"
#include "test/model/trainer_fixture.h"

static struct recipe recipe_with(enum config_precision precision, const char *const *settings) {
    struct config config;
    rig_config(&config, precision);
    for (int i = 0; settings && settings[i]; i += 2) {
        const struct config_option *option = config_option_of(settings[i]);
        double value = 0;
        while (option->type == CONFIG_ENUM && strcmp(option->names[(int)value], settings[i + 1]))
            value++;
        config_set(&config, option, option->type == CONFIG_ENUM ? value : atof(settings[i + 1]));
    }
    return recipe_of(&config, precision);
}

static void expect_format(const struct recipe *recipe, enum linear_operand kind,
                          enum linear_matmul matmul, struct quantize_format expected) {
    cr_expect(quantize_format_equal(&recipe->format[kind][matmul], &expected), "kind %d, matmul %d",
              kind, matmul);
}

Test(recipe, fp8_in_blocks) {
    struct recipe recipe =
        recipe_with(CONFIG_PRECISION_FP8, (const char *[]){"fp8.recipe", "block", NULL});
    const struct quantize_format row = {DTYPE_E4M3, 1, 128, DTYPE_E8M0, SCALE_POWER_OF_TWO, false};
    struct quantize_format square = row;
    square.rows = 128;
    expect_format(&recipe, LINEAR_INPUT, MATMUL_FORWARD, row);
    expect_format(&recipe, LINEAR_WEIGHT, MATMUL_INPUT_GRADIENT, square);
    expect_format(&recipe, LINEAR_GRADIENT, MATMUL_WEIGHT_GRADIENT, row);
    cr_expect(recipe.in_blocks && !recipe.scaled && !recipe.hadamard && !recipe.delayed);
}

Test(recipe, mx_elements_and_scales) {
    struct recipe recipe =
        recipe_with(CONFIG_PRECISION_MXFP8,
                    (const char *[]){"mx.format", "hybrid", "mx.scales", "floor", NULL});
    const struct quantize_format format = {DTYPE_E4M3, 1, 32, DTYPE_E8M0, SCALE_OF_EXPONENT, false};
    struct quantize_format gradient = format;
    gradient.element = DTYPE_E5M2;
    expect_format(&recipe, LINEAR_WEIGHT, MATMUL_FORWARD, format);
    expect_format(&recipe, LINEAR_GRADIENT, MATMUL_INPUT_GRADIENT, gradient);
    recipe = recipe_with(CONFIG_PRECISION_MXFP4, (const char *[]){"mx.format", "hybrid", NULL});
    cr_expect_eq(recipe.format[LINEAR_GRADIENT][MATMUL_INPUT_GRADIENT].element, DTYPE_E2M1);
}

Test(recipe, pieces_of_nvfp4) {
    const struct quantize_format format = {DTYPE_E2M1, 1, 16, DTYPE_E4M3, SCALE_NEAREST, false};
    struct quantize_format square = format, stochastic = format;
    square.rows = 16, stochastic.stochastic = true;
    struct recipe recipe = recipe_with(CONFIG_PRECISION_NVFP4, NULL);
    expect_format(&recipe, LINEAR_INPUT, MATMUL_WEIGHT_GRADIENT, format);
    expect_format(&recipe, LINEAR_WEIGHT, MATMUL_FORWARD, square);
    expect_format(&recipe, LINEAR_GRADIENT, MATMUL_INPUT_GRADIENT, stochastic);
    cr_expect(recipe.hadamard && recipe.in_blocks && recipe.scaled);
    recipe = recipe_with(CONFIG_PRECISION_NVFP4,
                         (const char *[]){"nvfp4.hadamard", "0", "nvfp4.stochastic_rounding", "0",
                                          "nvfp4.square_blocks", "0", NULL});
    expect_format(&recipe, LINEAR_WEIGHT, MATMUL_FORWARD, format);
    expect_format(&recipe, LINEAR_GRADIENT, MATMUL_WEIGHT_GRADIENT, format);
    cr_expect_not(recipe.hadamard);
}

/* Returns the digest of weights and moments after two steps. */
static struct digest train(const struct config *config, double *loss) {
    struct rig rig = {.config = *config};
    struct step_report report;
    rig_open(&rig, 2);
    for (int step = 0; step < 2; step++) report = rig_step(&rig);
    *loss = report.loss;
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

/* Each piece has an effect, and none of them changes a loss by more than rounding to 4 bits does.
 */
Test(recipe, each_piece_of_nvfp4_has_an_effect) {
    static const char *const keys[] = {"nvfp4.hadamard", "nvfp4.stochastic_rounding",
                                       "nvfp4.square_blocks", "autocast.lower16_first",
                                       "autocast.lower16_last"};
    struct config config;
    double loss, other;
    rig_config(&config, CONFIG_PRECISION_NVFP4);
    const struct digest whole = train(&config, &loss);
    for (size_t i = 0; i < COUNT(keys); i++) {
        struct config changed = config;
        const struct config_option *option = config_option_of(keys[i]);
        config_set(&changed, option, option->type == CONFIG_BOOLEAN ? 0 : 0.3);
        struct digest digest = train(&changed, &other);
        cr_expect_str_neq(digest.hex, whole.hex, "%s has no effect", keys[i]);
        cr_expect_float_eq(other, loss, 0.2, "%s: loss %g, %g", keys[i], other, loss);
    }
}

/* A run that quantizes no block is a run in bf16. */
Test(recipe, all_blocks_in_bf16) {
    struct config config, bf16;
    double loss;
    rig_config(&config, CONFIG_PRECISION_NVFP4);
    rig_config(&bf16, CONFIG_PRECISION_BF16);
    config.autocast.lower16_first = 1;
    config.autocast.lower16_last = (double)config.model.n_layer - 1;
    expect_same_digest(train(&config, &loss), train(&bf16, &loss), "no block in nvfp4");
}
