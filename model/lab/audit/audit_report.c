#include "model/lab/audit/audit_report.h"

#include <math.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "model/lab/audit/advice.h"
#include "data/util/table.h"

/* Returns the exponent of the current loss scale, rounded up to a power of two, so that the
 * remaining headroom is never overstated. */
static int scale_now(const struct audit *audit) {
    return (int)ceil(log2((double)audit->subject.loss_scale));
}

static void add_in_fp16(cJSON *object, const char *key, const struct magnitudes *m, int scale) {
    JSON_NUMBERS(cJSON_AddObjectToObject(object, key), {"zero", magnitudes_lost(m, scale)},
                 {"subnormal", magnitudes_subnormal(m, scale)},
                 {"room", magnitudes_headroom(m, scale)});
}

static void add_magnitudes(cJSON *object, const struct magnitudes *m, bool scaled, int scale) {
    int lowest = 0, highest = -1;
    JSON_NUMBERS(object, {"values", (double)m->count}, {"zeros", (double)m->zeros},
                 {"infinite", (double)m->infinite}, {"largest", (double)m->largest});
    magnitudes_range(m, &lowest, &highest);
    cJSON *exponents = cJSON_AddObjectToObject(object, "exponents");
    JSON_NUMBERS(exponents, {"first", lowest});
    cJSON *counts = cJSON_AddArrayToObject(exponents, "counts");
    for (int e = lowest; e <= highest; e++)
        cJSON_AddItemToArray(counts, cJSON_CreateNumber((double)m->bins[e - MAGNITUDE_MIN]));
    add_in_fp16(object, "unscaled", m, 0);
    if (scaled) add_in_fp16(object, "scaled", m, scale);
}

static void add_format(cJSON *formats, const struct audit_format *format,
                       const struct advice_format *advised, const char *name) {
    cJSON *object = cJSON_AddObjectToObject(formats, name);
    cJSON_AddBoolToObject(object, "usable", format->usable);
    cJSON_AddBoolToObject(object, "fit", advised->fit);
    JSON_NUMBERS(object, {"gradient_error", format->pass.gradient_error},
                 {"first_error", format->pass.first_error},
                 {"loss_scale", (double)format->pass.loss_scale});
    cJSON_AddItemToObject(object, "given", sites_json(format->given));
    cJSON_AddItemToObject(object, "needed", sites_json(format->needed));
    cJSON_AddItemToObject(object, "advised", sites_json(advised->sites));
    if (format->dtype == DTYPE_F16)
        JSON_NUMBERS(object,
                     {"predicted_scale", format->predicts ? format->predicted_scale : (double)NAN},
                     {"safe_scale", format->usable ? format->safe_scale : (double)NAN});
    cJSON *trials = cJSON_AddObjectToObject(object, "trials");
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (!format->trials[i].made) continue;
        JSON_NUMBERS(cJSON_AddObjectToObject(trials, autocast_site_name(i)),
                     {"gradient_error", format->trials[i].gradient_error},
                     {"removes", audit_format_removed(format, i)});
    }
}

/* Adds the dtype and the error of a tensor in each format, and its magnitudes in fp32. */
static void add_tensor(cJSON *object, const struct audit *audit, int id, int layer) {
    cJSON *stored = cJSON_AddObjectToObject(object, "stored");
    cJSON *errors = cJSON_AddObjectToObject(object, "error");
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        if (!audit->formats[i].made) continue;
        const struct record *record = &audit->formats[i].pass.records[id][layer];
        cJSON_AddStringToObject(stored, audit_name(i), dtype_name(record->stored));
        JSON_NUMBERS(errors, {audit_name(i), record_error(record)});
    }
    add_magnitudes(object, &audit->reference.records[id][layer].magnitudes,
                   tensor_id_is_gradient(id), scale_now(audit));
}

static void add_tensors(cJSON *root, const struct audit *audit) {
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    char label[TENSOR_ID_LABEL_MAX];
    for (int id = 0; id < TENSOR_IDS; id++)
        for (int layer = 0; layer < arrlen(audit->reference.records[id]); layer++) {
            cJSON *object = json_add_item(tensors);
            cJSON_AddStringToObject(object, "name", tensor_id_label(label, id, layer));
            cJSON_AddStringToObject(object, "tensor", tensor_id_label(label, id, -1));
            JSON_NUMBERS(object, {"layer", tensor_id_is_layered(id) ? layer : (double)NAN});
            cJSON_AddBoolToObject(object, "gradient", tensor_id_is_gradient(id));
            add_tensor(object, audit, id, layer);
        }
}

static void add_update(cJSON *object, const struct update *update) {
    JSON_NUMBERS(object, {"changed", (double)update->changed});
    cJSON *lost = cJSON_AddObjectToObject(object, "lost");
    cJSON *decibel = cJSON_AddObjectToObject(object, "decibel");
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        JSON_NUMBERS(lost, {audit_name(i), update_lost(update, i)});
        JSON_NUMBERS(decibel, {audit_name(i), update_decibel(update, i)});
    }
}

static void add_parameters(cJSON *root, const struct audit *audit) {
    const struct audit_pass *pass = &audit->reference;
    cJSON *list = cJSON_AddArrayToObject(root, "parameters");
    for (int i = 0; i < arrlen(pass->records[PARAMETERS]); i++) {
        cJSON *object = json_add_item(list);
        cJSON_AddStringToObject(object, "name", pass->list[i].name);
        cJSON_AddStringToObject(object, "kind", pass->list[i].kind);
        add_tensor(object, audit, PARAMETERS, i);
        add_magnitudes(cJSON_AddObjectToObject(object, "weights"), &pass->weights[i], false, 0);
        if (audit->update.parameters)
            add_update(cJSON_AddObjectToObject(object, "update"), &audit->update.parameters[i]);
    }
}

static void add_advice(cJSON *root, const struct audit *audit, struct advice *advice) {
    cJSON *object = cJSON_AddObjectToObject(root, "advice");
    cJSON_AddStringToObject(object, "format", dtype_name(advice->format));
    JSON_NUMBERS(object, {"tolerance", advice->tolerance});
    cJSON_AddItemToObject(object, "texts", advice->texts);
    cJSON *configs = cJSON_AddObjectToObject(object, "configs");
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].usable && !advice->diverged[0])
            cJSON_AddItemToObject(configs, audit_name(i), advice_config(advice, audit, i));
}

cJSON *audit_report(const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    struct advice advice;
    cJSON *root = subject_report(subject);
    advice_make(&advice, audit);
    if (advice.diverged[0]) cJSON_AddStringToObject(root, "diverged", advice.diverged);
    JSON_NUMBERS(root, {"loss_scale", (double)subject->loss_scale},
                 {"gradient_noise", audit->reference.gradient_noise});
    cJSON_AddBoolToObject(root, "loss_scale_of_run", subject->scale_of_run);
    cJSON *loss = cJSON_AddObjectToObject(root, "loss");
    cJSON *formats = cJSON_AddObjectToObject(root, "formats");
    JSON_NUMBERS(loss, {"fp32", audit->reference.loss});
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        if (!audit->formats[i].made) continue;
        JSON_NUMBERS(loss, {audit_name(i), audit->formats[i].pass.loss});
        add_format(formats, &audit->formats[i], &advice.formats[i], audit_name(i));
    }
    add_tensors(root, audit);
    add_parameters(root, audit);
    cJSON *update = cJSON_AddObjectToObject(root, "update");
    JSON_NUMBERS(update, {"step", (double)audit->update.step}, {"lr", audit->update.lr});
    cJSON_AddBoolToObject(update, "typical", !subject->fresh);
    add_update(update, &audit->update.all);
    if (audit->muon) cJSON_AddItemToObject(root, "muon", cJSON_Duplicate(audit->muon, true));
    add_advice(root, audit, &advice);
    return root;
}
