#include "model/lab/audit/audit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "kernels/block_scale.h"
#include "kernels/observer.h"
#include "model/config/config_keys.h"
#include "model/core/quantization.h"
#include "data/util/table.h"
#include "data/util/min_max.h"

/* Sums over the nonzero values of an operand of a layer. */
struct sums {
    double values, to_zero, saturated, signal, noise;
    enum dtype element;
};

/* State of the audit; its observer records the operands that the config quantizes. */
struct quantized_audit {
    struct observer observer; /* first member, so that a struct observer * casts to this */
    struct subject subject;
    enum config_precision precision;
    cJSON *report, *trials;
    struct model *model;         /* the observed model */
    struct fetched in, out;      /* operand before and after quantization */
    const float *values;         /* the former, in audit->in */
    float *scales;               /* stb_ds array: scales of the operand */
    struct audit_pass reference; /* fp32 */
    struct sums *sums;           /* stb_ds array [layers, LINEAR_COUNT, LINEAR_OPERANDS],
                                    in the order of its records */
    bool rounds[LINEAR_COUNT];   /* linear layers with quantized operands */
};

static void add_value(struct sums *sums, double value, double rounded, double limit) {
    double difference = value - rounded;
    if (value == 0 || !isfinite(value)) return;
    sums->values++;
    sums->to_zero += rounded == 0;
    sums->saturated += fabs(value) > limit;
    sums->signal += value * value;
    sums->noise += difference * difference;
}

static struct sums *sums_of(struct quantized_audit *audit, const struct quantize_record *record) {
    return &audit->sums[record - audit->model->quantization.records];
}

static void compare_codes(struct quantized_audit *audit, const struct quantize_args *args) {
    struct backend *be = audit->model->be;
    const struct tensor *scales = args->scales;
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t block_rows = rows / tensor_rows(scales);
    int64_t block_columns = columns / tensor_columns(scales);
    arrsetlen(audit->scales, tensor_count(scales));
    backend_download(be, audit->scales, scales->data, tensor_bytes(scales));
    const float *values = fetch_tensor(&audit->in, be, args->in);
    const float *codes = fetch_tensor(&audit->out, be, quantize_result(args));
    struct sums *sums = sums_of(audit, args->record);
    sums->element = quantize_result(args)->dtype;
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t row = i / columns, column = i % columns;
        float code = codes[args->out ? i : column * rows + row];
        float scale =
            audit->scales[row / block_rows * tensor_columns(scales) + column / block_columns];
        add_value(sums, (double)values[i], (double)(code * scale),
                  (double)(1.0001f * dtype_f8_max(sums->element) * scale));
    }
}

/* Part of an operand: a block that shares a scale. */
struct block {
    int64_t row, rows, column, columns;
};

/* tensor_scale: 1 in formats without one. */
static void compare_block(struct sums *sums, const float *values, const float *rounded,
                          const struct fake_quantize_args *args, const struct block *b,
                          float tensor_scale) {
    int64_t stride = tensor_columns(args->in);
    float amax = 0;
    for (int64_t row = b->row; row < b->row + b->rows; row++)
        for (int64_t c = b->column; c < b->column + b->columns; c++)
            amax = fmaxf(amax, fabsf(values[row * stride + c]));
    struct block_factors f = block_factors(amax, tensor_scale, args->format.element,
                                           args->format.scale, args->format.rounding);
    double limit = 1.0001 * (double)(element_max(args->format.element) * f.up * tensor_scale);
    for (int64_t row = b->row; row < b->row + b->rows; row++)
        for (int64_t c = b->column; c < b->column + b->columns; c++)
            add_value(sums, (double)values[row * stride + c],
                      (double)(rounded[row * stride + c] * tensor_scale), limit);
}

/* Returns the values that were written, as such or as codes, in units of the tensor's scale. */
static const float *fetch_rounded(struct quantized_audit *audit,
                                  const struct fake_quantize_args *args) {
    struct backend *be = audit->model->be;
    const struct tensor *out = args->out, *scales = args->block_scales;
    int64_t columns = tensor_columns(out), count = tensor_count(out);
    if (!scales) return fetch_tensor(&audit->out, be, out);
    uint8_t *codes = NULL, *of_blocks = NULL; /* stb_ds arrays */
    arrsetlen(codes, tensor_bytes(out));
    arrsetlen(of_blocks, tensor_bytes(scales));
    arrsetlen(audit->out.values, (size_t)count);
    backend_download(be, codes, out->data, tensor_bytes(out));
    backend_download(be, of_blocks, scales->data, tensor_bytes(scales));
    for (int64_t i = 0; i < count; i++) {
        bool half = out->dtype == DTYPE_E2M1;
        uint32_t code = half ? codes[i / 2] >> (i % 2 * 4) : codes[i];
        int64_t row = i / columns / args->format.rows, column = i % columns / args->format.columns;
        uint8_t scale = of_blocks[row * tensor_columns(scales) + column];
        audit->out.values[i] =
            element_value(code, out->dtype) * block_scale_value(scale, scales->dtype);
    }
    arrfree(codes);
    arrfree(of_blocks);
    return audit->out.values;
}

static void compare_blocks(struct quantized_audit *audit, const struct fake_quantize_args *args) {
    struct backend *be = audit->model->be;
    struct sums *sums = sums_of(audit, args->record);
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    const struct quantize_format *format = &args->format;
    float tensor_scale = 1;
    if (args->scales) backend_download(be, &tensor_scale, args->scales->data, sizeof tensor_scale);
    const float *rounded = fetch_rounded(audit, args);
    sums->element = format->element;
    for (int64_t row = 0; row < rows; row += format->rows)
        for (int64_t column = 0; column < columns; column += format->columns) {
            struct block block = {row, MIN(format->rows, rows - row), column,
                                  MIN(format->columns, columns - column)};
            compare_block(sums, audit->values, rounded, args, &block, tensor_scale);
        }
}

/* Fetches the values of an operand that may be rounded in place. */
static void fetch_operand(struct observer *observer, enum operation_id id, const void *all_args) {
    struct quantized_audit *audit = (struct quantized_audit *)observer;
    const struct fake_quantize_args *args = all_args;
    if (id == ID_fake_quantize && args->record)
        audit->values = fetch_tensor(&audit->in, audit->model->be, args->in);
}

/* Compares an operand before and after quantization. Each operand has a record only the first time
 * it is quantized. A transformed operand is compared as transformed. */
static void compare_operand(struct observer *observer, enum operation_id id, const void *all_args) {
    struct quantized_audit *audit = (struct quantized_audit *)observer;
    const struct quantize_args *codes = all_args;
    const struct fake_quantize_args *blocks = all_args;
    if (id == ID_quantize && codes->record) compare_codes(audit, codes);
    if (id == ID_fake_quantize && blocks->record) compare_blocks(audit, blocks);
}

/* Adds the figures of an operand: all layers together, and the layer with the lowest SNR. */
static void add_operand(struct quantized_audit *audit, cJSON *operands, int linear, int kind) {
    static const char *const kinds[] = {"input", "weight", "gradient"};
    struct sums all = {0};
    double worst = INFINITY;
    int worst_layer = 0;
    char name[60];
    for (int layer = 0; layer < (int)audit->subject.config.model.n_layer; layer++) {
        const struct sums *one =
            &audit->sums[(layer * LINEAR_COUNT + linear) * LINEAR_OPERANDS + kind];
        double snr = 10 * log10(one->signal / one->noise);
        all.values += one->values, all.to_zero += one->to_zero, all.saturated += one->saturated;
        all.signal += one->signal, all.noise += one->noise;
        all.element = one->element;
        if (snr < worst) worst = snr, worst_layer = layer;
    }
    cJSON *operand = json_add_item(operands);
    snprintf(name, sizeof name, "%s %s", linear_names[linear], kinds[kind]);
    cJSON_AddStringToObject(operand, "name", name);
    cJSON_AddStringToObject(operand, "layer", linear_names[linear]);
    cJSON_AddStringToObject(operand, "operand", kinds[kind]);
    cJSON_AddStringToObject(operand, "format", dtype_name(all.element));
    double values = all.values > 0 ? all.values : 1;
    JSON_NUMBERS(operand, {"to_zero", all.to_zero / values}, {"saturated", all.saturated / values},
                 {"snr", 10 * log10(all.signal / all.noise)}, {"worst_snr", worst},
                 {"worst_layer", worst_layer});
}

static void add_operands(struct quantized_audit *audit) {
    cJSON *operands = cJSON_AddArrayToObject(audit->report, "operands");
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (linear_index(i) < 0 || !audit->model->precision.quantized_site[i]) continue;
        audit->rounds[linear_index(i)] = true;
        for (int kind = 0; kind < LINEAR_OPERANDS; kind++)
            add_operand(audit, operands, linear_index(i), kind);
    }
}

/* A variant of the config; each key is set to its value. */
struct trial {
    char name[60];
    const char *keys[2];
    double values[2];
    char paste[80]; /* "": it keeps no further part of the model in bf16; else how */
};

/* Runs the micro-batches with a variant of config, and adds the trial to the report. With
 * `observed`, also adds the figures of the operands. */
static int run_trial(struct quantized_audit *audit, const struct trial *trial,
                     const struct config *config, bool observed, struct error *error) {
    struct trainer trainer;
    struct audit_pass pass;
    struct config changed = *config;
    for (int i = 0; i < 2 && trial->keys[i]; i++)
        config_set(&changed, config_option_of(trial->keys[i]), trial->values[i]);
    if (subject_trainer(&audit->subject, &trainer, &changed, 1, error)) return -1;
    audit->model = &trainer.model;
    if (observed) backend_observe(audit->model->be, &audit->observer);
    int status =
        audit_pass_run(&pass, &audit->subject, &trainer, &audit->reference, PASS_GRADIENTS, error);
    backend_observe(audit->model->be, NULL);
    cJSON *item = json_add_item(audit->trials);
    cJSON_AddStringToObject(item, "name", trial->name);
    if (trial->paste[0]) cJSON_AddStringToObject(item, "config", trial->paste);
    JSON_NUMBERS(item, {"loss", pass.loss}, {"loss_error", pass.loss / audit->reference.loss - 1},
                 {"gradient_error", pass.gradient_error},
                 {"gradient_cosine", pass.gradient_cosine});
    audit_pass_free(&pass);
    if (observed && status == 0) add_operands(audit);
    trainer_close(&trainer);
    return status;
}

/* A key with two values, and the name of a trial with each of them. */
struct alternative {
    enum config_precision precision; /* that has the key; AUTO: any */
    const char *key, *names[2];
};

/* Tries the value of a key that the config does not have. */
static int try_other(struct quantized_audit *audit, const struct alternative *alternative,
                     const struct config *config, struct error *error) {
    bool any = alternative->precision == CONFIG_PRECISION_AUTO;
    if (!any && alternative->precision != audit->precision) return 0;
    int other = config_number(config, config_option_of(alternative->key)) == 0;
    struct trial trial = {.keys = {alternative->key}, .values = {other}};
    snprintf(trial.name, sizeof trial.name, "%s%s%s",
             any ? "" : config_precision_name(audit->precision), any ? "" : " ",
             alternative->names[other]);
    return run_trial(audit, &trial, config, false, error);
}

/* Tries each setting of the precision: all recipes of fp8, the other value of other keys. */
static int try_settings(struct quantized_audit *audit, const struct config *config,
                        struct error *error) {
#define FP8(name, recipe, format) \
    { "fp8 " name, {"fp8.recipe", "fp8.format"}, {recipe, format}, "" }
    static const struct trial recipes[] = {
        FP8("tensor, hybrid", CONFIG_RECIPE_TENSOR, CONFIG_FORMAT_HYBRID),
        FP8("tensor, e4m3", CONFIG_RECIPE_TENSOR, CONFIG_FORMAT_E4M3),
        FP8("row, hybrid", CONFIG_RECIPE_ROW, CONFIG_FORMAT_HYBRID),
        FP8("row, e4m3", CONFIG_RECIPE_ROW, CONFIG_FORMAT_E4M3),
        FP8("block", CONFIG_RECIPE_BLOCK, CONFIG_FORMAT_HYBRID),
    };
#undef FP8
    static const struct alternative alternatives[] = {
        {CONFIG_PRECISION_MXFP8, "mx.format", {"hybrid", "e4m3"}},
        {CONFIG_PRECISION_MXFP8, "mx.scales", {"scales rounded up", "floor scales"}},
        {CONFIG_PRECISION_MXFP4, "mx.scales", {"scales rounded up", "floor scales"}},
        {CONFIG_PRECISION_NVFP4, "nvfp4.stochastic_rounding", {"to nearest", "stochastic"}},
        {CONFIG_PRECISION_NVFP4, "nvfp4.hadamard", {"without Hadamard", "with Hadamard"}},
        {CONFIG_PRECISION_NVFP4, "nvfp4.square_blocks", {"without squares", "with squares"}},
        {CONFIG_PRECISION_AUTO,
         "autocast.lower16_forward",
         {"forward pass quantized", "forward pass in bf16"}},
    };
    const size_t count =
        audit->precision == CONFIG_PRECISION_FP8 ? sizeof recipes / sizeof *recipes : 0;
    int status = 0;
    for (size_t i = 0; status == 0 && i < count; i++)
        status = run_trial(audit, &recipes[i], config, false, error);
    for (size_t i = 0; status == 0 && i < sizeof alternatives / sizeof *alternatives; i++)
        status = try_other(audit, &alternatives[i], config, error);
    return status;
}

/* Tries each linear layer, and the first and the last block, in bf16. */
static int try_parts_in_bf16(struct quantized_audit *audit, const struct config *config,
                             struct error *error) {
    static const char *const ends[] = {"first", "last"};
    int status = 0;
    for (int i = 0; status == 0 && i < LINEAR_COUNT; i++) {
        struct trial trial = {.name = ""};
        struct config other = *config;
        struct config_words *words = &other.autocast.lower16;
        if (!audit->rounds[i]) continue;
        words->items[words->count++] = linear_names[i];
        snprintf(trial.name, sizeof trial.name, "%s in bf16", linear_names[i]);
        snprintf(trial.paste, sizeof trial.paste, "{\"lower16\": [\"%s\"]}", linear_names[i]);
        status = run_trial(audit, &trial, &other, false, error);
    }
    const double blocks[] = {config->autocast.lower16_first, config->autocast.lower16_last};
    for (int i = 0; status == 0 && i < 2; i++) {
        struct trial trial = {.keys = {i ? "autocast.lower16_last" : "autocast.lower16_first"}};
        double count = (double)precision_blocks(blocks[i], config->model.n_layer);
        trial.values[0] = count + 1;
        snprintf(trial.name, sizeof trial.name, "%s block in bf16", ends[i]);
        snprintf(trial.paste, sizeof trial.paste, "{\"lower16_%s\": %.0f}", ends[i], count + 1);
        if (count + 1 < (double)config->model.n_layer)
            status = run_trial(audit, &trial, config, false, error);
    }
    return status;
}

/* Tries bf16, the precision as configured (observed), its settings, and parts in bf16. */
static int run_trials(struct quantized_audit *audit, struct error *error) {
    const struct trial bf16 = {.name = "bf16"};
    struct trial own = {.name = ""};
    struct config config = audit->subject.config;
    config.precision = CONFIG_PRECISION_BF16;
    int status = run_trial(audit, &bf16, &config, false, error);
    config.precision = audit->precision;
    snprintf(own.name, sizeof own.name, "%s as configured",
             config_precision_name(audit->precision));
    if (status == 0) status = run_trial(audit, &own, &config, true, error);
    if (status == 0) status = try_settings(audit, &config, error);
    return status ? status : try_parts_in_bf16(audit, &config, error);
}

cJSON *quantized_advice(const cJSON *trials, enum config_precision precision) {
    const cJSON *best = NULL, *trial;
    const char *name = config_precision_name(precision);
    double error = json_number_at(cJSON_GetArrayItem(trials, 1), "gradient_error");
    double least = INFINITY;
    cJSON *texts = cJSON_CreateArray();
    if (!isfinite(error)) {
        json_add_text(texts, "Something is not finite in %s: use bf16.", name);
        return texts;
    }
    cJSON_ArrayForEach(trial, trials) { /* the part that removes most of the error in bf16 */
        if (json_at(trial, "config") && json_number_at(trial, "gradient_error") < least)
            least = json_number_at(trial, "gradient_error"), best = trial;
    }
    double removed = 100 * (1 - least / error);
    if (best && removed > 25)
        json_add_text(
            texts, "%s removes %.0f %% of the error of the gradients: consider \"autocast\": %s.",
            json_text_at(best, "name"), removed, json_text_at(best, "config"));
    else if (best)
        json_add_text(texts, "No single part stands out: %s removes %.0f %% of the error.",
                      json_text_at(best, "name"), removed);
    if (precision == CONFIG_PRECISION_FP8)
        json_add_text(texts, "The recipe delayed is not among those tried: its scales come from "
                             "the steps before, and a few batches have none, so that here it would "
                             "be tensor.");
    if (precision == CONFIG_PRECISION_NVFP4)
        json_add_text(texts, "Stochastic rounding makes the error of one step larger and that of "
                             "the mean of many steps smaller.");
    json_add_text(texts,
                  "A few batches show how large errors are, not whether training stands them: "
                  "scripts/compare_precisions.sh with --precisions fp32,bf16,%s does.",
                  name);
    return texts;
}

/* Runs the micro-batches in fp32, and then all trials. */
static int run(struct quantized_audit *audit, struct trainer *trainer, const struct config *config,
               struct error *error) {
    int status =
        audit_pass_run(&audit->reference, &audit->subject, trainer, NULL, PASS_GRADIENTS, error);
    trainer_close(trainer);
    arrsetlen(audit->sums, config->model.n_layer * LINEAR_COUNT * LINEAR_OPERANDS);
    memset(audit->sums, 0, arrlenu(audit->sums) * sizeof *audit->sums);
    audit->report = subject_report(&audit->subject);
    cJSON_AddStringToObject(audit->report, "precision", config_precision_name(audit->precision));
    JSON_NUMBERS(audit->report, {"loss", audit->reference.loss});
    audit->trials = cJSON_AddArrayToObject(audit->report, "trials");
    if (status == 0) status = run_trials(audit, error);
    if (status == 0)
        cJSON_AddItemToObject(audit->report, "advice",
                              quantized_advice(audit->trials, audit->precision));
    return status;
}

int quantized_audit_run(cJSON **report, const struct config *config,
                        enum config_precision precision, const char *from, int repetitions,
                        const volatile sig_atomic_t *stop, struct error *error) {
    struct quantized_audit audit = {
        .observer = {.before = fetch_operand, .after = compare_operand},
        .subject = {.repetitions = repetitions, .stop = stop},
        .precision = precision,
    };
    struct trainer trainer;
    if (subject_open(&audit.subject, &trainer, config, from, error)) return -1;
    int status = run(&audit, &trainer, config, error);
    audit_pass_free(&audit.reference);
    subject_close(&audit.subject);
    fetched_free(&audit.in);
    fetched_free(&audit.out);
    arrfree(audit.scales);
    arrfree(audit.sums);
    if (status) cJSON_Delete(audit.report);
    else *report = audit.report;
    return status;
}
