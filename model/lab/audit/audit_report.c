/* Report of an audit of bf16 and fp16: its figures, and advice as sentences and as a block of
 * config.
 *
 * Tolerance: an error of the gradients is compared with their noise from batch to batch. The noise
 * of a step is that of a micro-batch over the square root of grad_accum_steps. The tolerance is a
 * tenth of it, which adds one hundredth to its variance, but at least 1 % and at most 10 %. It is 2
 * % if the noise is unknown.
 *
 * Operations in autocast.float32: those of the config, and those without which a tensor is
 * infinite. If the error is above the tolerance, each operation is added that alone removes a
 * quarter of it. A 16-bit residual stream becomes float32 if it is infinite otherwise.
 *
 * Format: a 16-bit format is fit if it is finite and its error, with these operations, is within
 * the tolerance. Among the fit formats with fast matmuls on the device, bf16 is preferred to fp16:
 * it has the range of fp32 and needs no loss scale. If there is none, the advice is fp32.
 *
 * Divergence: a loss in fp32 of one nat more than that of equal chances for all tokens. Another
 * precision cannot mend it, so then nothing else is advised. */
#include "model/lab/audit/audit.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/table.h"

#define TOLERANCE_OF_NOISE 0.1
#define TOLERANCE_MIN      0.01
#define TOLERANCE_MAX      0.1
#define TOLERANCE_UNKNOWN  0.02
#define SITE_REMOVES       0.25 /* fraction of the error that justifies the slower operation */

enum {
    /* The advised init_scale is half the largest safe scale, because batches outside the audit may
     * have larger gradients. With growth_interval 5 on the built-in text and on Shakespeare, the
     * dynamic scale of configs/fp16.json was between half and twice the safe scale of the same
     * step. At half of it almost no gradient underflows. */
    SCALE_MARGIN = 1
};

/* Advice about a format. */
struct advised {
    bool fit;
    unsigned sites; /* operations of autocast.float32, as bits */
    double error;   /* error of the gradients, measured with at most one added operation */
    int init_scale; /* fp16: exponent of the scale, at least the config's loss_scale.min_scale */
};

struct advice {
    const struct audit *audit;
    enum dtype format;
    double tolerance;
    struct advised formats[AUDIT_FORMATS];
};

/* ---- figures */

/* Returns the exponent of the current loss scale, rounded up to a power of two, so that the
 * remaining headroom is never overstated. */
static int scale_now(const struct audit *audit) {
    assert(audit->subject.loss_scale > 0);
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

static void add_format(cJSON *formats, const struct advice *advice, int i) {
    const struct audit_format *format = &advice->audit->formats[i];
    const struct advised *advised = &advice->formats[i];
    cJSON *object = cJSON_AddObjectToObject(formats, audit_name(i));
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
    for (int site = 0; site < AUTOCAST_SITE_COUNT; site++) {
        if (!format->trials[site].made) continue;
        JSON_NUMBERS(cJSON_AddObjectToObject(trials, autocast_site_name(site)),
                     {"gradient_error", format->trials[site].gradient_error},
                     {"removes", audit_format_removed(format, site)});
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
            if (audit->reference.records[id][layer].magnitudes.count == 0) continue; /* absent */
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

/* ---- advice */

static double step_noise(const struct audit *audit) {
    return audit->reference.gradient_noise /
           sqrt((double)audit->subject.config.train.grad_accum_steps);
}

static double tolerance_of(const struct audit *audit) {
    double noise = step_noise(audit);
    if (noise == 0) return TOLERANCE_UNKNOWN;
    return fmin(fmax(TOLERANCE_OF_NOISE * noise, TOLERANCE_MIN), TOLERANCE_MAX);
}

static void choose_sites(struct advised *advised, const struct audit_format *found,
                         double tolerance) {
    advised->sites = found->given | found->needed;
    advised->error = found->usable ? found->pass.gradient_error : INFINITY;
    if (advised->error <= tolerance || !found->usable) return;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (audit_format_removed(found, i) < SITE_REMOVES) continue;
        advised->sites |= 1u << i;
        advised->error = fmin(advised->error, found->trials[i].gradient_error);
    }
}

static bool is_native(const struct audit *audit, int format) {
    return audit->subject.be.device.native[format == AUDIT_BF16 ? DTYPE_BF16 : DTYPE_F16];
}

static enum dtype choose_format(const struct advice *advice) {
    const struct audit *audit = advice->audit;
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (advice->formats[i].fit && is_native(audit, i)) return audit->formats[i].dtype;
    return DTYPE_F32;
}

static const char *device_word(const struct audit *audit) {
    return audit->subject.be.device.kind == BACKEND_CUDA ? "GPU" : "CPU";
}

static void write_format(cJSON *texts, const struct advice *advice, int i) {
    const struct audit *audit = advice->audit;
    const struct advised *format = &advice->formats[i];
    const char *name = audit_name(i);
    double noise = step_noise(audit);
    if (audit->formats[i].dtype == advice->format)
        json_add_text(texts,
                      "Format: %s. Its gradients are %s from those of fp32%s%s. This %s has fast "
                      "products in it%s.",
                      name, percent(format->error).text,
                      noise > 0 ? "; another batch changes them by " : "",
                      noise > 0 ? percent(noise).text : "", device_word(audit),
                      i == AUDIT_BF16 ? ", and it needs no loss scale" : "");
    else if (!audit->formats[i].usable)
        json_add_text(texts, "%s cannot hold this model: values are infinite%s.", name,
                      i == AUDIT_FP16 ? ", whatever is kept in float32" : "");
    else
        json_add_text(
            texts, "%s is %sexact enough: error %s, tolerance %s%s.", name,
            format->fit ? "" : "not ", percent(format->error).text, percent(advice->tolerance).text,
            format->fit && !is_native(audit, i) ? ", but without fast products here" : "");
}

static void write_formats(cJSON *texts, const struct advice *advice) {
    const struct audit *audit = advice->audit;
    if (advice->format == DTYPE_F32)
        json_add_text(texts,
                      "Format: fp32. No format that is exact enough has fast products on this %s.",
                      device_word(audit));
    for (int k = 0; k < 2 * AUDIT_FORMATS; k++) { /* the advised format comes first */
        int i = k % AUDIT_FORMATS;
        bool advised = audit->formats[i].dtype == advice->format;
        if (audit->formats[i].made && advised == (k < AUDIT_FORMATS))
            write_format(texts, advice, i);
    }
}

static void write_scale(cJSON *texts, const struct advice *advice) {
    const struct audit *audit = advice->audit;
    const struct audit_format *found = &audit->formats[AUDIT_FP16];
    struct magnitudes gradients;
    if (!found->made || !found->usable) return;
    int safe = found->safe_scale, start = advice->formats[AUDIT_FP16].init_scale;
    double smallest = audit->subject.config.loss_scale.min_scale;
    int now = scale_now(audit);
    int batches = audit_pass_tried(&audit->subject, &found->pass.precision);
    audit_format_gradients(&gradients, found, &audit->reference);
    json_add_text(
        texts,
        "Loss scale for fp16: 2^%d is the largest power of two that stayed finite in %d "
        "micro-batch%s (2^%d did not). Start at 2^%d = %.12g; the dynamic scale adapts from "
        "there.",
        safe, batches, batches == 1 ? "" : "es", safe + 1, start, ldexp(1, start));
    if (ldexp(1, safe) < smallest)
        json_add_text(
            texts,
            "loss_scale.min_scale, %.12g, is more than what stayed finite: steps would be "
            "skipped until the run gives up. Set it to 2^%d = %.12g or less.",
            smallest, safe, ldexp(1, safe));
    json_add_text(
        texts,
        "Of the gradients that fp16 stores, %s become zero and %s subnormal at scale 1, %s "
        "and %s at 2^%d.",
        percent(magnitudes_lost(&gradients, 0)).text,
        percent(magnitudes_subnormal(&gradients, 0)).text,
        percent(magnitudes_lost(&gradients, start)).text,
        percent(magnitudes_subnormal(&gradients, start)).text, start);
    json_add_text(texts, "%s is at %.12g: %s zero and %s subnormal%s at 2^%d.",
                  audit->subject.scale_of_run ? "This run" : "loss_scale.init_scale",
                  (double)audit->subject.loss_scale, percent(magnitudes_lost(&gradients, now)).text,
                  percent(magnitudes_subnormal(&gradients, now)).text,
                  magnitudes_headroom(&gradients, now) < 0 ? ", and the largest overflow," : "",
                  now);
}

static void write_sites(cJSON *texts, const struct advice *advice, int format) {
    const struct audit_format *found = &advice->audit->formats[format];
    unsigned sites = advice->formats[format].sites & ~found->given;
    const char *name = audit_name(format);
    double most = 0;
    int best = -1;
    if (found->needs_residual)
        json_add_text(
            texts,
            "Keep the residual stream in float32 in %s (autocast.residual): values of it are "
            "beyond 65504.",
            name);
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        double removes = audit_format_removed(found, i);
        if (removes > most) most = removes, best = i;
        if (found->needed & 1u << i)
            json_add_text(
                texts,
                "Keep %s in float32 in %s: without it values are beyond 65504, whatever the "
                "loss scale.",
                autocast_site_name(i), name);
        else if (sites & 1u << i)
            json_add_text(texts, "Keep %s in float32 in %s: that alone removes %s of the error.",
                          autocast_site_name(i), name, percent(removes).text);
    }
    if (best >= 0 && (sites & ~found->needed) == 0)
        json_add_text(
            texts,
            "Nothing %shas to stay in float32 in %s: %s, the best choice, would remove %s of "
            "the error.",
            found->needed || found->given ? "else " : "", name, autocast_site_name(best),
            percent(most).text);
}

static void write_masters(cJSON *texts, const struct advice *advice) {
    const struct audit_update *update = &advice->audit->update;
    if (update->all.changed == 0) return;
    json_add_text(
        texts,
        "Master weights stay in fp32: of the updates of step %" PRId64 " (lr %.3g) a bf16 "
        "master would lose %s, an fp16 one %s.%s",
        update->step, update->lr, percent(update_lost(&update->all, AUDIT_BF16)).text,
        percent(update_lost(&update->all, AUDIT_FP16)).text,
        advice->audit->subject.fresh ? " Adam's first step is not typical: name a checkpoint with "
                                       "--from to see another."
                                     : "");
}

/* Writes the weights and the activations that have the largest values. */
static void largest_text(char *text, size_t size, const struct audit_pass *pass) {
    char label[TENSOR_ID_LABEL_MAX], highest[TENSOR_ID_LABEL_MAX] = "";
    float weight = 0, activation = 0;
    ptrdiff_t heaviest = -1;
    text[0] = '\0';
    for (ptrdiff_t i = 0; i < arrlen(pass->weights); i++) {
        if (pass->weights[i].largest <= weight) continue;
        weight = pass->weights[i].largest;
        heaviest = i;
    }
    for (int id = 0; id < TENSOR_IDS; id++)
        for (int layer = 0; layer < arrlen(pass->records[id]); layer++) {
            float largest = pass->records[id][layer].magnitudes.largest;
            if (tensor_id_is_gradient(id) || largest <= activation) continue;
            activation = largest;
            snprintf(highest, sizeof highest, "%s", tensor_id_label(label, id, layer));
        }
    if (heaviest >= 0)
        snprintf(text, size,
                 " Largest weights: %s, up to %.3g; largest activations: %s, up to %.3g.",
                 pass->list[heaviest].name, (double)weight, highest, (double)activation);
}

/* Adds "diverged" to the report if the loss has diverged. */
static bool add_divergence(cJSON *root, const struct audit *audit) {
    const struct config *config = &audit->subject.config;
    double equal = log((double)config->model.vocab_size), loss = audit->reference.loss;
    char largest[250], text[500];
    if (loss <= equal + 1) return false;
    largest_text(largest, sizeof largest, &audit->reference);
    snprintf(
        text, sizeof text,
        "The loss itself has diverged: it is %.3g in fp32 too, and equal chances for all %" PRId64
        " tokens give %.3g.%s Train again with a lower optimizer.lr (it is %.3g), more "
        "warmup_steps or a grad_clip.",
        loss, config->model.vocab_size, equal, largest, config->optimizer.lr);
    cJSON_AddStringToObject(root, "diverged", text);
    return true;
}

/* Chooses the format and its settings. */
static struct advice choose(const struct audit *audit) {
    /* loss_scale.init_scale is limited to the range from min_scale to 2^32. */
    int smallest = (int)ceil(log2(audit->subject.config.loss_scale.min_scale));
    struct advice advice = {.audit = audit, .tolerance = tolerance_of(audit)};
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *found = &audit->formats[i];
        struct advised *format = &advice.formats[i];
        if (!found->made) continue;
        choose_sites(format, found, advice.tolerance);
        format->fit = found->usable && format->error <= advice.tolerance;
        int start = found->safe_scale - SCALE_MARGIN;
        format->init_scale = start < smallest ? smallest : start > 32 ? 32 : start;
    }
    advice.format = choose_format(&advice);
    return advice;
}

/* Returns the advised keys as a config for --config. */
static cJSON *config_of(const struct advice *advice, int format) {
    const struct audit *audit = advice->audit;
    cJSON *config = cJSON_CreateObject();
    cJSON_AddStringToObject(config, "precision", audit_name(format));
    cJSON *autocast = cJSON_AddObjectToObject(config, "autocast");
    cJSON_AddItemToObject(autocast, "float32", sites_json(advice->formats[format].sites));
    bool needed = audit->formats[format].needs_residual;
    if (needed || audit->subject.config.autocast.residual == CONFIG_DTYPE_LOWER)
        cJSON_AddStringToObject(autocast, "residual", needed ? "float32" : "lower");
    if (audit->formats[format].dtype == DTYPE_F16)
        cJSON_AddNumberToObject(cJSON_AddObjectToObject(config, "loss_scale"), "init_scale",
                                ldexp(1, advice->formats[format].init_scale));
    return config;
}

static void add_advice(cJSON *root, const struct advice *advice, bool diverged) {
    cJSON *object = cJSON_AddObjectToObject(root, "advice");
    cJSON_AddStringToObject(object, "format", dtype_name(advice->format));
    JSON_NUMBERS(object, {"tolerance", advice->tolerance});
    cJSON *texts = cJSON_AddArrayToObject(object, "texts");
    cJSON *configs = cJSON_AddObjectToObject(object, "configs");
    if (diverged) {
        json_add_text(texts, "None about precision, since the loss has diverged in fp32.");
        return;
    }
    write_formats(texts, advice);
    write_scale(texts, advice);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (advice->audit->formats[i].made) write_sites(texts, advice, i);
    write_masters(texts, advice);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (advice->audit->formats[i].usable)
            cJSON_AddItemToObject(configs, audit_name(i), config_of(advice, i));
}

cJSON *audit_report(const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    const struct advice advice = choose(audit);
    cJSON *root = subject_report(subject);
    bool diverged = add_divergence(root, audit);
    JSON_NUMBERS(root, {"loss_scale", (double)subject->loss_scale},
                 {"gradient_noise", audit->reference.gradient_noise});
    cJSON_AddBoolToObject(root, "loss_scale_of_run", subject->scale_of_run);
    cJSON *loss = cJSON_AddObjectToObject(root, "loss");
    cJSON *formats = cJSON_AddObjectToObject(root, "formats");
    JSON_NUMBERS(loss, {"fp32", audit->reference.loss});
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        if (!audit->formats[i].made) continue;
        JSON_NUMBERS(loss, {audit_name(i), audit->formats[i].pass.loss});
        add_format(formats, &advice, i);
    }
    add_tensors(root, audit);
    add_parameters(root, audit);
    cJSON *update = cJSON_AddObjectToObject(root, "update");
    JSON_NUMBERS(update, {"step", (double)audit->update.step}, {"lr", audit->update.lr});
    cJSON_AddBoolToObject(update, "typical", !subject->fresh);
    add_update(update, &audit->update.all);
    add_advice(root, &advice, diverged);
    return root;
}
