#include "model/lab/audit/audit_fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "kernels/observer.h"
#include "model/core/quantization.h"
#include "model/lab/audit/audit_pass.h"
#include "model/page/section.h"

/* Sums over the nonzero values of an operand of a layer. */
struct sums {
    double values, to_zero, saturated, signal, noise;
    enum dtype element;
};

/* State of the audit; its observer records the operands that the config quantizes. */
struct fp8_audit {
    struct observer observer; /* first member, so that a struct observer * casts to this */
    struct subject subject;
    cJSON *report, *trials;
    struct gpt *gpt;             /* the observed model */
    struct fetched in, out;      /* operand before and after quantization */
    float *scales;               /* stb_ds array: scales of the operand */
    struct audit_pass reference; /* fp32 */
    struct sums *sums;           /* stb_ds array [layers, LINEAR_COUNT, QUANTIZED_KINDS], as
                                    indexed by quantization_place */
    bool rounds[LINEAR_COUNT];   /* linear layers that the config computes in fp8 */
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

/* Compares an operand before and after quantization. Each operand has a record only the first time
 * it is quantized. */
static void compare_operand(struct observer *observer, enum operation_id id, const void *all_args) {
    struct fp8_audit *audit = (struct fp8_audit *)observer;
    const struct quantize_args *args = all_args;
    struct backend *be = audit->gpt->be;
    if (id != ID_quantize || !args->record) return;
    const struct tensor *scales = args->scales;
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t block_rows = rows / tensor_rows(scales);
    int64_t block_columns = columns / tensor_columns(scales);
    arrsetlen(audit->scales, tensor_count(scales));
    backend_download(be, audit->scales, scales->data, tensor_bytes(scales));
    const float *values = fetch_tensor(&audit->in, be, args->in);
    const float *codes = fetch_tensor(&audit->out, be, quantize_result(args));
    struct sums *sums = &audit->sums[args->record - audit->gpt->quantization.records];
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

/* Adds the figures of an operand: all layers together, and the layer with the lowest SNR. */
static void add_operand(struct fp8_audit *audit, cJSON *operands, int linear, int kind) {
    static const char *const kinds[] = {"input", "weight", "gradient"};
    struct sums all = {0};
    double worst = INFINITY;
    int worst_layer = 0;
    char name[60];
    for (int layer = 0; layer < (int)audit->subject.config.model.n_layer; layer++) {
        const struct sums *one =
            &audit->sums[(layer * LINEAR_COUNT + linear) * QUANTIZED_KINDS + kind];
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

static void add_operands(struct fp8_audit *audit) {
    cJSON *operands = cJSON_AddArrayToObject(audit->report, "operands");
    for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (linear_index(i) < 0 || !audit->gpt->precision.fp8_site[i]) continue;
        audit->rounds[linear_index(i)] = true;
        for (int kind = 0; kind < QUANTIZED_KINDS; kind++)
            add_operand(audit, operands, linear_index(i), kind);
    }
}

/* Runs the micro-batches with one setting, and adds the trial to the report. With `observed`, also
 * adds the figures of the operands. */
static int run_trial(struct fp8_audit *audit, const char *name, const struct config *config,
                     bool observed, struct error *error) {
    struct trainer trainer;
    struct audit_pass pass;
    if (subject_trainer(&audit->subject, &trainer, config, 1, error)) return -1;
    audit->gpt = &trainer.gpt;
    if (observed) backend_observe(audit->gpt->be, &audit->observer);
    int status =
        audit_pass_run(&pass, &audit->subject, &trainer, &audit->reference, PASS_GRADIENTS, error);
    backend_observe(audit->gpt->be, NULL);
    cJSON *trial = json_add_item(audit->trials);
    cJSON_AddStringToObject(trial, "name", name);
    JSON_NUMBERS(trial, {"loss", pass.loss}, {"loss_error", pass.loss / audit->reference.loss - 1},
                 {"gradient_error", pass.gradient_error});
    audit_pass_free(&pass);
    if (observed && status == 0) add_operands(audit);
    trainer_close(&trainer);
    return status;
}

/* Tries bf16, fp8 as configured (observed), each recipe and format, and each layer in bf16. */
static int run_trials(struct fp8_audit *audit, const struct config *given, struct error *error) {
    static const char *const names[] = {"fp8 tensor, hybrid", "fp8 tensor, e4m3", "fp8 row, hybrid",
                                        "fp8 row, e4m3"};
    struct config config = audit->subject.config;
    config.precision = CONFIG_PRECISION_BF16;
    int status = run_trial(audit, "bf16", &config, false, error);
    config.precision = CONFIG_PRECISION_FP8;
    config.fp8 = given->fp8;
    if (status == 0) status = run_trial(audit, "fp8 as configured", &config, true, error);
    for (int i = 0; status == 0 && i < 4; i++) {
        struct config other = config;
        other.fp8.recipe = i < 2 ? CONFIG_RECIPE_TENSOR : CONFIG_RECIPE_ROW;
        other.fp8.format = i % 2 ? CONFIG_FORMAT_E4M3 : CONFIG_FORMAT_HYBRID;
        status = run_trial(audit, names[i], &other, false, error);
    }
    for (int i = 0; status == 0 && i < LINEAR_COUNT; i++) {
        struct config other = config;
        struct config_words *words = &other.autocast.lower16;
        char name[48];
        if (!audit->rounds[i]) continue;
        words->items[words->count++] = linear_names[i];
        snprintf(name, sizeof name, "%s in bf16", linear_names[i]);
        status = run_trial(audit, name, &other, false, error);
    }
    return status;
}

/* The advice names the layer that removes the largest part of the error if it stays in bf16. */
cJSON *fp8_advice(const cJSON *trials) {
    const cJSON *best = NULL, *trial = cJSON_GetArrayItem(trials, FP8_TRIAL_LAYERS);
    double error = json_number_at(cJSON_GetArrayItem(trials, 1), "gradient_error"),
           least = INFINITY;
    const char *texts[3] = {"Something is not finite in fp8: use bf16."};
    char text[200];
    int count = 0;
    if (!isfinite(error)) return cJSON_CreateStringArray(texts, 1);
    for (; trial; trial = trial->next)
        if (json_number_at(trial, "gradient_error") < least)
            least = json_number_at(trial, "gradient_error"), best = trial;
    if (best) {
        const char *name = json_text_at(best, "name");
        double removed = 100 * (1 - least / error);
        if (removed > 25)
            snprintf(text, sizeof text,
                     "%s removes %.0f %% of the error of the gradients: consider "
                     "\"autocast\": {\"lower16\": [\"%.*s\"]}.",
                     name, removed, (int)strcspn(name, " "), name);
        else
            snprintf(text, sizeof text,
                     "No single layer stands out: %s removes %.0f %% of the error.", name, removed);
        texts[count++] = text;
    }
    texts[count++] = "The recipe delayed is not among those tried: its scales come from the steps "
                     "before, and a few batches have none, so that here it would be tensor.";
    texts[count++] = "A few batches show how large errors are, not whether training stands them: "
                     "scripts/compare_precisions.sh with --precisions fp32,bf16,fp8 does.";
    return cJSON_CreateStringArray(texts, count);
}

/* Runs the micro-batches in fp32, and then all trials. */
static int run(struct fp8_audit *audit, struct trainer *trainer, const struct config *config,
               struct error *error) {
    int status =
        audit_pass_run(&audit->reference, &audit->subject, trainer, NULL, PASS_GRADIENTS, error);
    trainer_close(trainer);
    arrsetlen(audit->sums, config->model.n_layer * LINEAR_COUNT * QUANTIZED_KINDS);
    memset(audit->sums, 0, arrlenu(audit->sums) * sizeof *audit->sums);
    audit->report = subject_report(&audit->subject);
    JSON_NUMBERS(audit->report, {"loss", audit->reference.loss});
    audit->trials = cJSON_AddArrayToObject(audit->report, "trials");
    if (status == 0) status = run_trials(audit, config, error);
    if (status == 0) cJSON_AddItemToObject(audit->report, "advice", fp8_advice(audit->trials));
    return status;
}

int fp8_audit_run(cJSON **report, const struct config *config, const char *from, int repetitions,
                  const volatile sig_atomic_t *stop, struct error *error) {
    struct fp8_audit audit = {.observer = {.after = compare_operand},
                              .subject = {.repetitions = repetitions, .stop = stop}};
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
