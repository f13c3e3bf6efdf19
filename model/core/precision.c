#include "model/core/precision.h"

#include <assert.h>
#include <string.h>

#include "data/util/fraction.h"
#include "data/util/note.h"
#include "model/config/config_keys.h"

/* ---- Recipes */

/* Returns a format of `rows` x `columns` elements a block. */
static struct quantize_format format_of(enum dtype element, int64_t rows, int64_t columns,
                                        enum dtype scale, enum scale_rounding rounding) {
    return (struct quantize_format){
        .element = element, .rows = rows, .columns = columns, .scale = scale, .rounding = rounding};
}

/* Sets the formats of all operands: those of forward operands, of weights, and of gradients. */
static void set_formats(struct recipe *recipe, struct quantize_format input,
                        struct quantize_format weight, struct quantize_format gradient) {
    recipe->format[LINEAR_INPUT][MATMUL_FORWARD] = input;
    recipe->format[LINEAR_INPUT][MATMUL_WEIGHT_GRADIENT] = input;
    recipe->format[LINEAR_WEIGHT][MATMUL_FORWARD] = weight;
    recipe->format[LINEAR_WEIGHT][MATMUL_INPUT_GRADIENT] = weight;
    recipe->format[LINEAR_GRADIENT][MATMUL_INPUT_GRADIENT] = gradient;
    recipe->format[LINEAR_GRADIENT][MATMUL_WEIGHT_GRADIENT] = gradient;
}

/* Rows of the fp8 table, in the order of enum config_recipe. */
static const struct {
    enum dtype forward, gradient, scale;
    int64_t rows, columns, weight_rows;
    enum scale_rounding rounding;
    bool delayed;
} recipe_rows[] = {
#define X(NAME, name, scales, forward, gradient, scale, rows, columns, weight_rows, rounding, \
          delayed)                                                                            \
    [CONFIG_RECIPE_##NAME] = {DTYPE_##forward, DTYPE_##gradient, DTYPE_##scale, rows,         \
                              columns,         weight_rows,      rounding,      delayed},
    RECIPES(X)
#undef X
};

static void resolve_fp8_recipe(struct recipe *recipe, const struct config *config) {
    enum config_recipe row = config->fp8.recipe;
    int64_t columns = recipe_rows[row].columns;
    enum dtype scale = recipe_rows[row].scale, forward = recipe_rows[row].forward;
    enum dtype gradient =
        config->fp8.format == CONFIG_FORMAT_E4M3 ? forward : recipe_rows[row].gradient;
    enum scale_rounding rounding =
        config->fp8.power_of_two ? SCALE_POWER_OF_TWO : recipe_rows[row].rounding;
    set_formats(recipe, format_of(forward, recipe_rows[row].rows, columns, scale, rounding),
                format_of(forward, recipe_rows[row].weight_rows, columns, scale, rounding),
                format_of(gradient, recipe_rows[row].rows, columns, scale, rounding));
    recipe->delayed = recipe_rows[row].delayed;
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
    case CONFIG_PRECISION_FP8: resolve_fp8_recipe(&recipe, config); break;
    case CONFIG_PRECISION_MXFP8: resolve_mx(&recipe, config, DTYPE_E4M3); break;
    case CONFIG_PRECISION_MXFP4: resolve_mx(&recipe, config, DTYPE_E2M1); break;
    case CONFIG_PRECISION_NVFP4: resolve_nvfp4(&recipe, config); break;
    default: assert(false);
    }
    const struct quantize_format *input = &recipe.format[LINEAR_INPUT][MATMUL_FORWARD];
    recipe.in_blocks = quantize_format_in_blocks(input);
    recipe.scaled = !recipe.in_blocks || quantize_format_has_tensor_scale(input);
    return recipe;
}

bool recipe_is_native(const struct recipe *recipe, const struct backend *be) {
    if (!recipe->in_blocks) return be->device.native_8_bit;
    for (int i = 0; i < LINEAR_OPERANDS * LINEAR_MATMULS; i++) {
        const struct quantize_format *format =
            &recipe->format[i / LINEAR_MATMULS][i % LINEAR_MATMULS];
        if (format->columns && !backend_multiplies_blocks(be, format)) return false;
    }
    return true;
}

/* ---- Precision */

static enum dtype choose_compute_dtype(const struct config *config, const struct backend *be,
                                       FILE *notes) {
    if (config_precision_quantizes(config->precision)) return DTYPE_BF16;
    if (config->precision != CONFIG_PRECISION_AUTO) return (enum dtype)config->precision;
    const bool *native = be->device.native;
    enum dtype chosen = native[DTYPE_BF16] ? DTYPE_BF16 : native[DTYPE_F16] ? DTYPE_F16 : DTYPE_F32;
    note(notes, "note", "precision \"auto\": %s, because this %s has %s", dtype_name(chosen),
         be->device.kind == BACKEND_CUDA ? "GPU" : be->device.name,
         native[DTYPE_BF16]  ? "bf16 matrix products"
         : native[DTYPE_F16] ? "fp16 matrix products but no bf16"
                             : "no fast 16-bit matrix products");
    return chosen;
}

bool precision_lists_site(const struct config_words *list, enum autocast_site site) {
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->items[i], autocast_site_name(site)) == 0) return true;
    return false;
}

static enum dtype narrower(enum dtype a, enum dtype b) {
    return a == DTYPE_F32 ? b : a;
}

/* The casts that autocast would insert are part of the store: a tensor has the narrower of its
 * writer's and its reader's dtypes. */
static void resolve_activations(struct precision *p) {
    for (int i = 0; i < ACTIVATIONS_AND_STATISTICS; i++) {
        const struct activation *a = &activation_table[i];
        p->activation[i] = a->statistic  ? DTYPE_F32
                           : a->residual ? p->residual
                                         : narrower(p->site[a->writer], p->site[a->reader]);
    }
}

/* Sites with POLICY_INPUT take the dtype of the site that writes their input. */
static void resolve_sites(struct precision *p, const struct config *config) {
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        bool float32 =
            !autocast_site_is_choice(i) || precision_lists_site(&config->autocast.float32, i);
        p->site[i] = float32 ? DTYPE_F32 : p->compute_dtype;
    }
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        bool follows = !a->residual && autocast_site_policy(a->reader) == POLICY_INPUT;
        if (follows && p->site[a->reader] != DTYPE_F32) p->site[a->reader] = p->site[a->writer];
    }
}

int64_t precision_blocks(double given, int64_t n_layer) {
    int64_t blocks = given < 1 ? fraction_of(given, n_layer, FRACTION_UP) : (int64_t)given;
    return blocks < n_layer ? blocks : n_layer;
}

static void resolve_quantized(struct precision *p, const struct config *config) {
    const int64_t n_layer = config->model.n_layer;
    p->quantized = config->precision;
    p->n_layer = n_layer;
    p->quantized_begin = precision_blocks(config->autocast.lower16_first, n_layer);
    p->quantized_end = n_layer - precision_blocks(config->autocast.lower16_last, n_layer);
    p->backward_only = config->autocast.lower16_forward;
    p->quantized_in_all =
        p->quantized_begin == 0 && p->quantized_end == n_layer && !p->backward_only;
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        p->quantized_site[i] = config_precision_quantizes(config->precision) &&
                               p->site[i] != DTYPE_F32 && linear_index(i) >= 0 &&
                               p->quantized_begin < p->quantized_end &&
                               !precision_lists_site(&config->autocast.lower16, i);
        p->quantizes = p->quantizes || p->quantized_site[i];
    }
    if (p->quantizes) p->recipe = recipe_of(config, config->precision);
}

/* Fails if the GPU has to multiply quantized operands but cannot; notes that it multiplies their
 * values instead. */
static int check_products(const struct precision *p, FILE *notes, const struct config *config,
                          const struct backend *be, struct error *error) {
    if (!p->quantizes || be->device.kind != BACKEND_CUDA || recipe_is_native(&p->recipe, be))
        return 0;
    const char *name = precision_name(p);
    if (config->fp8.require)
        return fail(error,
                    "fp8.require: %s has no matrix products in %s that mantissa uses\n"
                    "leave it out to multiply the values of the same operands in bf16",
                    be->device.description, name);
    note(notes, "note",
         "precision \"%s\": without products in it on this GPU; the values of the same operands "
         "are multiplied in bf16, slower than precision \"bf16\"",
         name);
    return 0;
}

/* MASTERS_SPLIT needs bf16, which is the upper half of fp32. MASTERS_KEPT is not streamed. */
static enum master_form resolve_masters(const struct precision *p, const struct config *config) {
    enum config_copy copy = config->weights.copy;
    if (p->compute_dtype == DTYPE_F32) return MASTERS_DIRECT;
    if (copy == CONFIG_COPY_CAST) return MASTERS_CAST;
    if (p->compute_dtype == DTYPE_BF16 && copy != CONFIG_COPY_KEPT) return MASTERS_SPLIT;
    return config->offload.weights && copy != CONFIG_COPY_KEPT ? MASTERS_CAST : MASTERS_KEPT;
}

/* Embedding and head keep 16 bits where linear layers have fewer. */
static void resolve_frozen(struct precision *p, const struct config *config) {
    p->frozen = p->compute_dtype;
    switch (config->adapter.base) {
    case CONFIG_BASE_AUTO: break;
    case CONFIG_BASE_FLOAT32: p->frozen = DTYPE_F32; break;
    case CONFIG_BASE_BFLOAT16: p->frozen = DTYPE_BF16; break;
    case CONFIG_BASE_FLOAT16: p->frozen = DTYPE_F16; break;
    case CONFIG_BASE_NF4: p->frozen_format = WEIGHT_NF4; break;
    case CONFIG_BASE_FP8: p->frozen_format = WEIGHT_FP8; break;
    case CONFIG_BASE_FP8_BLOCK: p->frozen_format = WEIGHT_FP8_BLOCK; break;
    }
}

int precision_resolve(struct precision *precision, FILE *notes, const struct config *config,
                      const struct backend *be, struct error *error) {
    struct precision *p = precision;
    memset(p, 0, sizeof *p);
    p->compute_dtype =
        config->autocast.enabled ? choose_compute_dtype(config, be, notes) : DTYPE_F32;
    if (p->compute_dtype == DTYPE_BF16 && !be->device.computes[DTYPE_BF16])
        return fail(error,
                    "precision \"%s\": %s cannot compute in bf16\n"
                    "use \"precision\": \"fp16\", which scales the loss to make up for its range",
                    config_precision_name(config->precision), be->device.description);
    if (config->model.full_attention_interval > 1 && !be->device.delta_rule)
        return fail(error,
                    "model.full_attention_interval: %s cannot compute Gated DeltaNets, which need "
                    "tensor cores for TF32 (compute capability 8.0)\n"
                    "use a newer GPU, or \"device\": \"cpu\"",
                    be->device.description);
    resolve_sites(p, config);
    resolve_quantized(p, config);
    if (check_products(p, notes, config, be, error)) return -1;
    p->residual = config->autocast.residual == CONFIG_DTYPE_LOWER ? p->compute_dtype : DTYPE_F32;
    p->gradients = config->gradients.dtype == CONFIG_DTYPE_LOWER ? p->compute_dtype : DTYPE_F32;
    p->moments = config->optimizer.moments == CONFIG_MOMENTS_BFLOAT16 ? DTYPE_BF16 : DTYPE_F32;
    p->masters = resolve_masters(p, config);
    resolve_frozen(p, config);
    p->scale_loss = p->compute_dtype == DTYPE_F16;
    resolve_activations(p);
    return 0;
}

enum config_precision precision_setting(const struct precision *precision,
                                        const struct config *config) {
    return config->precision == CONFIG_PRECISION_AUTO ? precision_effective(precision)
                                                      : config->precision;
}

enum config_precision precision_effective(const struct precision *precision) {
    return precision->quantizes ? precision->quantized
                                : (enum config_precision)precision->compute_dtype;
}

const char *precision_name(const struct precision *precision) {
    return config_precision_name(precision_effective(precision));
}

bool precision_branch_is_residual(const struct precision *precision) {
    for (int i = 0; i < ACTIVATION_COUNT; i++)
        if (activation_table[i].gradient == SCRATCH_dbranch &&
            precision->activation[i] != precision->residual)
            return false;
    return true;
}

enum { LIST_MAX = 1024 };

static void add(char list[LIST_MAX], const char *separator, const char *word) {
    const size_t used = strlen(list);
    snprintf(list + used, LIST_MAX - used, "%s%s", separator, word);
}

/* Adds the blocks and the pass with quantized operands, unless all have them. */
static void add_blocks(char list[LIST_MAX], const struct precision *p) {
    char text[64];
    if (p->backward_only) add(list, " ", "in the backward pass");
    if (p->quantized_begin == 0 && p->quantized_end == p->n_layer) return;
    snprintf(text, sizeof text, "in blocks %lld to %lld", (long long)p->quantized_begin,
             (long long)p->quantized_end - 1);
    add(list, " ", text);
}

void precision_print(FILE *out, const struct precision *precision) {
    enum { COLUMN = 13 }; /* of values in the banner */
    const struct precision *p = precision;
    char list[LIST_MAX] = "";
    if (p->compute_dtype == DTYPE_F32) add(list, "", "fp32 everywhere");
    if (p->quantizes) {
        add(list, precision_name(p), ":");
        for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
            if (p->quantized_site[i]) add(list, " ", autocast_site_name(i));
        add_blocks(list, p);
    }
    for (int pass = 0; pass < 2 && p->compute_dtype != DTYPE_F32; pass++) {
        enum dtype wanted = pass == 0 ? p->compute_dtype : DTYPE_F32;
        add(list, list[0] ? "\n" : "", dtype_name(wanted));
        add(list, ":", "");
        for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
            if (p->site[i] == wanted && !p->quantized_site[i])
                add(list, " ", autocast_site_name(i));
        if (p->residual == wanted) add(list, " ", "residual");
        if (p->gradients == wanted) add(list, " ", "gradients");
    }
    fputc(' ', out);
    text_wrap(out, COLUMN, COLUMN, COLUMN, list);
}
