#include "model/lab/audit/audit.h"

#include <math.h>

#include <cjson/cJSON.h>

#include "model/architecture/autocast_sites.h"
#include "data/util/table.h"

#define IN_FP16 .needs = "stored.fp16"
#define UPDATED .needs = "update.changed"

static const struct section forward = {
    .title = "Forward pass",
    .note = "Errors: root mean square of the difference from fp32, relative to fp32. In fp16, of "
            "the values that are not zero: the shares that become zero (at most 2^-25) and "
            "subnormal (below 2^-14, loses bits); room: doublings left before overflow. \"-\": "
            "kept in fp32.",
    .kind = "tensor",
    .columns = {{"forward", "name"},
                {"bf16", "error.bf16", SHOW_SHARE},
                {"fp16", "error.fp16", SHOW_SHARE},
                {"zero", "unscaled.zero", SHOW_SHARE, IN_FP16},
                {"subnormal", "unscaled.subnormal", SHOW_SHARE, IN_FP16},
                {"room", "unscaled.room", SHOW_DECIBELS, IN_FP16}}};

static const struct section backward = {
    .title = "Backward pass",
    .note = "The same for gradients of activations. \"scaled\" and room: at the loss scale.",
    .kind = "tensor",
    .columns = {{"backward", "name"},
                {"bf16", "error.bf16", SHOW_SHARE},
                {"fp16", "error.fp16", SHOW_SHARE},
                {"zero", "unscaled.zero", SHOW_SHARE, IN_FP16},
                {"scaled", "scaled.zero", SHOW_SHARE, IN_FP16},
                {"subnormal", "unscaled.subnormal", SHOW_SHARE, IN_FP16},
                {"scaled", "scaled.subnormal", SHOW_SHARE, IN_FP16},
                {"room", "scaled.room", SHOW_DECIBELS, IN_FP16}}};

static const struct section parameters = {
    .title = "Parameters",
    .note = "Errors of gradients; and, if the master weights were 16 bit: updates lost in one "
            "step, and the signal to noise of the update in decibels.",
    .kind = "kind",
    .columns = {{"gradient of", "name"},
                {"bf16", "error.bf16", SHOW_SHARE},
                {"fp16", "error.fp16", SHOW_SHARE},
                {"scaled zero", "scaled.zero", SHOW_SHARE, IN_FP16},
                {"lost bf16", "update.lost.bf16", SHOW_SHARE, UPDATED},
                {"fp16", "update.lost.fp16", SHOW_SHARE, UPDATED},
                {"dB bf16", "update.decibel.bf16", SHOW_DECIBELS, UPDATED},
                {"fp16", "update.decibel.fp16", SHOW_DECIBELS, UPDATED}}};

static const struct section trials = {
    .title = "One more operation in float32",
    .note = "Error of all gradients in at most two micro-batches with one more word in "
            "autocast.float32, and the part of it that this removes. Operations that are in "
            "float32 already are left out, or \"-\".",
    .columns = {{"one more", "name"},
                {"bf16", "bf16.gradient_error", SHOW_SHARE},
                {"removes", "bf16.removes", SHOW_SHARE},
                {"fp16", "fp16.gradient_error", SHOW_SHARE},
                {"removes", "fp16.removes", SHOW_SHARE}}};

static const struct section operands = {
    .title = "Quantized operands of linear layers",
    .note = "As the config rounds them. Of the values that are not zero: the share that became "
            "zero and the share beyond the largest value. Signal to noise in decibels, of all "
            "layers and of the worst.",
    .columns = {{"operand", "name"},
                {"format", "format"},
                {"to zero", "to_zero", SHOW_SHARE},
                {"saturated", "saturated", SHOW_SHARE},
                {"SNR", "snr", SHOW_DECIBELS},
                {"worst", "worst_snr", SHOW_DECIBELS},
                {"layer", "worst_layer", SHOW_NUMBER}}};

static const struct section recipes = {
    .title = "Loss and gradients",
    .note =
        "The loss and the error of all gradients, relative to fp32, and the cosine of the angle "
        "between both gradients.",
    .columns = {{"computed in", "name"},
                {"loss", "loss", SHOW_NUMBER, 5},
                {"against fp32", "loss_error", SHOW_SHARE},
                {"error of gradients", "gradient_error", SHOW_SHARE},
                {"cosine", "gradient_cosine", SHOW_NUMBER, 4}}};

/* ---- rows */

/* Prints the tensors of one pass. */
static void print_tensors(FILE *out, const struct section *section, const cJSON *tensors,
                          bool gradient) {
    cJSON *rows = cJSON_CreateArray(), *tensor;
    cJSON_ArrayForEach(tensor, tensors) {
        if (cJSON_IsTrue(json_at(tensor, "gradient")) == gradient)
            cJSON_AddItemReferenceToArray(rows, tensor);
    }
    section_print(out, section, rows);
    cJSON_Delete(rows);
}

/* Prints the parameters, and the figures of all together. */
static void print_parameters(FILE *out, const cJSON *report) {
    cJSON *rows = cJSON_CreateArray(), *parameter;
    const cJSON *format;
    cJSON_ArrayForEach(parameter, json_at(report, "parameters")) {
        cJSON_AddItemReferenceToArray(rows, parameter);
    }
    cJSON *all = json_add_item(rows), *errors = cJSON_AddObjectToObject(all, "error");
    cJSON_AddStringToObject(all, "name", "all");
    cJSON_AddStringToObject(all, "kind", "all");
    cJSON_ArrayForEach(format, json_at(report, "formats")) {
        JSON_NUMBERS(errors, {format->string, json_number_at(format, "gradient_error")});
    }
    cJSON_AddItemReferenceToObject(all, "update", cJSON_GetObjectItem(report, "update"));
    section_print(out, &parameters, rows);
    cJSON_Delete(rows);
}

/* Prints the errors without a trial, and the trials of each operation in all formats. */
static void print_trials(FILE *out, const cJSON *formats) {
    cJSON *rows = cJSON_CreateArray();
    const cJSON *format;
    for (int i = -1; i < AUTOCAST_NAME_COUNT; i++) {
        const char *name = i < 0 ? "(none)" : autocast_names[i];
        cJSON *row = json_add_item(rows);
        cJSON_AddStringToObject(row, "name", name);
        cJSON_ArrayForEach(format, formats) {
            const cJSON *trial = json_at(json_at(format, "trials"), name);
            if (trial) cJSON_AddItemReferenceToObject(row, format->string, (cJSON *)trial);
            else if (i < 0)
                JSON_NUMBERS(cJSON_AddObjectToObject(row, format->string),
                             {"gradient_error", json_number_at(format, "first_error")});
        }
    }
    section_print(out, &trials, rows);
    cJSON_Delete(rows);
}

/* ---- the page */

/* Prints the table of the weights, the device, the losses and the loss scale. */
static void print_head(FILE *out, const cJSON *report) {
    struct table table = {0};
    char losses[120] = "", scaled[80] = "";
    const cJSON *loss, *all = json_at(report, "loss");
    double scale = json_number_at(report, "loss_scale"), power = ceil(log2(scale));
    size_t used = 0;
    if (cJSON_IsNumber(all)) snprintf(losses, sizeof losses, "fp32 %.6f", all->valuedouble);
    cJSON_ArrayForEach(loss, all) {
        used += (size_t)snprintf(losses + used, sizeof losses - used,
                                 loss->valuedouble < 100 ? "%s%s %.6f" : "%s%s %.7g",
                                 used ? ", " : "", loss->string, loss->valuedouble);
    }
    const char *const facts[] = {"weights", json_text_at(report, "from"),
                                 "device",  json_text_at(report, "device"),
                                 "loss",    losses};
    table_columns(&table, TABLE_LEFT, "config", json_text_at(report, "config"), NULL);
    for (int i = 0; i < 6; i++) table_cell(&table, "%s", facts[i]);
    if (json_at(report, "formats.fp16")) {
        bool of_run = cJSON_IsTrue(json_at(report, "loss_scale_of_run"));
        if (scale != exp2(power))
            snprintf(scaled, sizeof scaled, "; the figures are at 2^%.0f", power);
        table_cell(&table, "loss scale");
        table_cell(&table, "%.12g, %s%s", scale,
                   of_run ? "that of the fp16 run at this step" : "loss_scale.init_scale", scaled);
    }
    fputc('\n', out);
    table_print(out, &table);
}

static void print_advice(FILE *out, const cJSON *advice) {
    const cJSON *item, *texts = cJSON_IsArray(advice) ? advice : json_at(advice, "texts");
    text_heading(out, "Advice");
    cJSON_ArrayForEach(item, texts) text_print(out, 2, "%s", item->valuestring);
    cJSON_ArrayForEach(item, json_at(advice, "configs")) {
        char *json = cJSON_Print(item);
        for (char *c = json; c && *c; c++) *c = *c == '\t' ? ' ' : *c;
        fputc('\n', out);
        text_print(out, 0, "Config for %s", item->string);
        fprintf(out, "\n%s\n", json ? json : "");
        cJSON_free(json);
    }
}

void audit_print(FILE *out, const cJSON *report) {
    const cJSON *tensors = json_at(report, "tensors");
    double batches = json_number_at(report, "repetitions");
    text_print(out, 2,
               "Precision audit of %s%s%s: %.0f micro-batch%s of %.0f x %.0f tokens from step "
               "%.0f on",
               json_text_at(report, "config"), tensors ? "" : ", ",
               tensors ? "" : json_text_at(report, "precision"), batches, batches == 1 ? "" : "es",
               json_number_at(report, "micro_batch_size"), json_number_at(report, "seq_len"),
               json_number_at(report, "step") + 1);
    if (json_at(report, "diverged"))
        text_print(out, 4, "diverged: %s", json_text_at(report, "diverged"));
    print_head(out, report);
    if (tensors)
        text_print(out, 2,
                   "Each row below is the worst of its layers; --out DIR writes all of "
                   "them.");
    print_tensors(out, &forward, tensors, false);
    print_tensors(out, &backward, tensors, true);
    if (tensors) print_parameters(out, report);
    print_trials(out, json_at(report, "formats"));
    section_print(out, &operands, json_at(report, "operands"));
    section_print(out, &recipes, json_at(report, "trials"));
    print_advice(out, json_at(report, "advice"));
}
