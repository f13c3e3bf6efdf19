#include "model/lab/audit/audit_print.h"

#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "model/lab/audit/audit_tables.h"

/* cJSON prints what is not finite as null. */
static void number(cJSON *object, const char *key, double value) {
    cJSON_AddNumberToObject(object, key, value);
}

static void add_words(cJSON *object, const char *key, unsigned words) {
    cJSON *list = cJSON_AddArrayToObject(object, key);
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++)
        if (words & (1u << i))
            cJSON_AddItemToArray(list, cJSON_CreateString(autocast_site_name(i)));
}

static void add_in_fp16(cJSON *object, const char *key, const struct magnitudes *m, int scale) {
    cJSON *figures = cJSON_AddObjectToObject(object, key);
    number(figures, "zero", magnitudes_lost(m, scale));
    number(figures, "subnormal", magnitudes_subnormal(m, scale));
    number(figures, "room", magnitudes_headroom(m, scale));
}

static void add_magnitudes(cJSON *object, const struct magnitudes *m, bool scaled, int scale) {
    int lowest = 0, highest = -1;
    number(object, "values", (double)m->count);
    number(object, "zeros", (double)m->zeros);
    number(object, "infinite", (double)m->infinite);
    number(object, "largest", (double)m->largest);
    magnitudes_range(m, &lowest, &highest);
    cJSON *exponents = cJSON_AddObjectToObject(object, "exponents");
    number(exponents, "first", lowest);
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
    number(object, "gradient_error", format->pass.gradient_error);
    number(object, "loss_scale", (double)format->pass.loss_scale);
    add_words(object, "given", format->given);
    add_words(object, "needed", format->needed);
    add_words(object, "advised", advised->words);
    if (format->dtype == DTYPE_F16) {
        number(object, "predicted_scale", format->predicts ? format->predicted_scale : (double)NAN);
        number(object, "safe_scale", format->usable ? format->safe_scale : (double)NAN);
    }
    cJSON *trials = cJSON_AddObjectToObject(object, "trials");
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (!format->trials[i].made) continue;
        cJSON *trial = cJSON_AddObjectToObject(trials, autocast_site_name(i));
        number(trial, "gradient_error", format->trials[i].gradient_error);
        number(trial, "removes", audit_format_removed(format, i));
    }
}

static void add_tensor(cJSON *tensors, const struct audit *audit, int place, int layer) {
    char name[80], tensor[PLACE_NAME_MAX];
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(tensors, object);
    place_label(name, sizeof name, place, layer);
    cJSON_AddStringToObject(object, "name", name);
    cJSON_AddStringToObject(object, "tensor", place_name(tensor, place));
    number(object, "layer", place_is_layered(place) ? layer : (double)NAN);
    cJSON_AddBoolToObject(object, "gradient", place_is_gradient(place));
    cJSON *stored = cJSON_AddObjectToObject(object, "stored");
    cJSON *errors = cJSON_AddObjectToObject(object, "error");
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *format = &audit->formats[i];
        if (!format->made) continue;
        const struct record *record = &format->pass.places[place][layer];
        cJSON_AddStringToObject(stored, audit_name(i), dtype_name(record->stored));
        number(errors, audit_name(i), record_error(record));
    }
    add_magnitudes(object, &audit->reference.places[place][layer].magnitudes,
                   place_is_gradient(place), audit_scale_now(audit));
}

static void add_tensors(cJSON *root, const struct audit *audit) {
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (int place = 0; place < PLACES; place++)
        for (int layer = 0; layer < audit->reference.layers[place]; layer++)
            add_tensor(tensors, audit, place, layer);
}

static void add_update(cJSON *object, const struct update *update) {
    number(object, "changed", (double)update->changed);
    cJSON *lost = cJSON_AddObjectToObject(object, "lost");
    cJSON *decibel = cJSON_AddObjectToObject(object, "decibel");
    for (int i = 0; i < MASTER_FORMATS; i++) {
        const char *name = dtype_name(i == MASTER_BF16 ? DTYPE_BF16 : DTYPE_F16);
        number(lost, name, update_lost(update, i));
        number(decibel, name, update_decibel(update, i));
    }
}

static void add_parameters(cJSON *root, const struct audit *audit) {
    const struct audit_pass *pass = &audit->reference;
    cJSON *list = cJSON_AddArrayToObject(root, "parameters");
    for (int i = 0; i < pass->parameter_count; i++) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddItemToArray(list, object);
        cJSON_AddStringToObject(object, "name", pass->list[i].name);
        cJSON *errors = cJSON_AddObjectToObject(object, "error");
        for (int f = 0; f < AUDIT_FORMATS; f++)
            if (audit->formats[f].made)
                number(errors, audit_name(f), record_error(&audit->formats[f].pass.parameters[i]));
        add_magnitudes(object, &pass->parameters[i].magnitudes, true, audit_scale_now(audit));
        add_magnitudes(cJSON_AddObjectToObject(object, "weights"), &pass->weights[i], false, 0);
        if (audit->update.parameters)
            add_update(cJSON_AddObjectToObject(object, "update"), &audit->update.parameters[i]);
    }
}

static void add_advice(cJSON *root, const struct audit *audit, const struct advice *advice) {
    cJSON *object = cJSON_AddObjectToObject(root, "advice");
    cJSON_AddStringToObject(object, "format", dtype_name(advice->format));
    number(object, "tolerance", advice->tolerance);
    cJSON *texts = cJSON_AddArrayToObject(object, "texts");
    for (ptrdiff_t i = 0; i < arrlen(advice->texts); i++)
        cJSON_AddItemToArray(texts, cJSON_CreateString(advice->texts[i]));
    cJSON *configs = cJSON_AddObjectToObject(object, "configs");
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        char *text = advice_config_text(advice, audit, i);
        if (text) cJSON_AddItemToObject(configs, audit_name(i), cJSON_Parse(text));
        free(text);
    }
}

static void add_head(cJSON *root, const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    cJSON_AddStringToObject(root, "config", subject->config.name);
    cJSON_AddStringToObject(root, "from", subject->from);
    number(root, "step", (double)subject->step);
    number(root, "repetitions", subject->repetitions);
    number(root, "micro_batch_size", (double)subject->config.train.micro_batch_size);
    number(root, "seq_len", (double)subject->config.data.seq_len);
    cJSON_AddStringToObject(root, "device", subject->be.device.description);
    number(root, "loss_scale", (double)subject->loss_scale);
    cJSON_AddBoolToObject(root, "loss_scale_of_run", subject->scale_of_run);
    number(root, "gradient_noise", audit->reference.gradient_noise);
    cJSON *loss = cJSON_AddObjectToObject(root, "loss");
    number(loss, "fp32", audit->reference.loss);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made) number(loss, audit_name(i), audit->formats[i].pass.loss);
}

void audit_print_json(FILE *out, const struct audit *audit, const struct advice *advice) {
    cJSON *root = cJSON_CreateObject();
    add_head(root, audit);
    cJSON *formats = cJSON_AddObjectToObject(root, "formats");
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made)
            add_format(formats, &audit->formats[i], &advice->formats[i], audit_name(i));
    add_tensors(root, audit);
    add_parameters(root, audit);
    cJSON *update = cJSON_AddObjectToObject(root, "update");
    number(update, "step", (double)audit->update.step);
    number(update, "lr", audit->update.lr);
    cJSON_AddBoolToObject(update, "typical", !audit->subject.fresh);
    add_update(update, &audit->update.all);
    add_advice(root, audit, advice);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (!text) abort(); /* as stb_ds does when memory is short */
    fprintf(out, "%s\n", text);
    free(text);
}
