#include "model/lab/audit/advice.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/table.h"

#define TOLERANCE_OF_NOISE 0.1
#define TOLERANCE_MIN      0.01
#define TOLERANCE_MAX      0.1
#define TOLERANCE_UNKNOWN  0.02
#define SITE_REMOVES       0.25 /* fraction of the error that justifies the slower operation */

__attribute__((format(printf, 2, 3))) static void add_text(struct advice *advice,
                                                           const char *format, ...) {
    char text[600];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON_AddItemToArray(advice->texts, cJSON_CreateString(text));
}

static double step_noise(const struct audit *audit) {
    return audit->reference.gradient_noise /
           sqrt((double)audit->subject.config.train.grad_accum_steps);
}

static double tolerance_of(const struct audit *audit) {
    double noise = step_noise(audit);
    if (noise == 0) return TOLERANCE_UNKNOWN;
    return fmin(fmax(TOLERANCE_OF_NOISE * noise, TOLERANCE_MIN), TOLERANCE_MAX);
}

static void choose_sites(struct advice_format *advised, const struct audit_format *found,
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

static enum dtype choose_format(const struct advice *advice, const struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (advice->formats[i].fit && is_native(audit, i)) return audit->formats[i].dtype;
    return DTYPE_F32;
}

static const char *device_word(const struct audit *audit) {
    return audit->subject.be.device.kind == BACKEND_CUDA ? "GPU" : "CPU";
}

static void write_format(struct advice *advice, const struct audit *audit, int i) {
    const struct advice_format *format = &advice->formats[i];
    const char *name = audit_name(i);
    double noise = step_noise(audit);
    if (audit->formats[i].dtype == advice->format)
        add_text(advice,
                 "Format: %s. Its gradients are %s from those of fp32%s%s. This %s has fast "
                 "products in it%s.",
                 name, percent(format->error).text,
                 noise > 0 ? "; another batch changes them by " : "",
                 noise > 0 ? percent(noise).text : "", device_word(audit),
                 i == AUDIT_BF16 ? ", and it needs no loss scale" : "");
    else if (!audit->formats[i].usable)
        add_text(advice, "%s cannot hold this model: values are infinite%s.", name,
                 i == AUDIT_FP16 ? ", whatever is kept in float32" : "");
    else
        add_text(advice, "%s is %sexact enough: error %s, tolerance %s%s.", name,
                 format->fit ? "" : "not ", percent(format->error).text,
                 percent(advice->tolerance).text,
                 format->fit && !is_native(audit, i) ? ", but without fast products here" : "");
}

static void write_formats(struct advice *advice, const struct audit *audit) {
    if (advice->format == DTYPE_F32)
        add_text(advice,
                 "Format: fp32. No format that is exact enough has fast products on this %s.",
                 device_word(audit));
    for (int k = 0; k < 2 * AUDIT_FORMATS; k++) { /* the advised format comes first */
        int i = k % AUDIT_FORMATS;
        bool advised = audit->formats[i].dtype == advice->format;
        if (audit->formats[i].made && advised == (k < AUDIT_FORMATS))
            write_format(advice, audit, i);
    }
}

static void write_scale(struct advice *advice, const struct audit *audit) {
    const struct audit_format *found = &audit->formats[AUDIT_FP16];
    struct magnitudes gradients;
    if (!found->made || !found->usable) return;
    int safe = found->safe_scale, start = advice->formats[AUDIT_FP16].init_scale;
    double smallest = audit->subject.config.loss_scale.min_scale;
    int batches = audit_pass_tried(&audit->subject, &found->pass.precision);
    audit_format_gradients(&gradients, found, &audit->reference);
    add_text(advice,
             "Loss scale for fp16: 2^%d is the largest power of two that stayed finite in %d "
             "micro-batch%s (2^%d did not). Start at 2^%d = %.12g; the dynamic scale adapts from "
             "there.",
             safe, batches, batches == 1 ? "" : "es", safe + 1, start, ldexp(1, start));
    if (audit->subject.scale_of_run)
        add_text(advice, "This run is at %.12g.", (double)audit->subject.loss_scale);
    if (ldexp(1, safe) < smallest)
        add_text(advice,
                 "loss_scale.min_scale, %.12g, is more than what stayed finite: steps would be "
                 "skipped until the run gives up. Set it to 2^%d = %.12g or less.",
                 smallest, safe, ldexp(1, safe));
    add_text(advice,
             "Of the gradients that fp16 stores, %s become zero and %s subnormal at scale 1, %s "
             "and %s at 2^%d.",
             percent(magnitudes_lost(&gradients, 0)).text,
             percent(magnitudes_subnormal(&gradients, 0)).text,
             percent(magnitudes_lost(&gradients, start)).text,
             percent(magnitudes_subnormal(&gradients, start)).text, start);
}

static void write_sites(struct advice *advice, const struct audit *audit, int format) {
    const struct audit_format *found = &audit->formats[format];
    unsigned sites = advice->formats[format].sites & ~found->given;
    const char *name = audit_name(format);
    double most = 0;
    int best = -1;
    if (found->needs_residual)
        add_text(advice,
                 "Keep the residual stream in float32 in %s (autocast.residual): values of it are "
                 "beyond 65504.",
                 name);
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        double removes = audit_format_removed(found, i);
        if (removes > most) most = removes, best = i;
        if (found->needed & 1u << i)
            add_text(advice,
                     "Keep %s in float32 in %s: without it values are beyond 65504, whatever the "
                     "loss scale.",
                     autocast_site_name(i), name);
        else if (sites & 1u << i)
            add_text(advice, "Keep %s in float32 in %s: that alone removes %s of the error.",
                     autocast_site_name(i), name, percent(removes).text);
    }
    if (best >= 0 && (sites & ~found->needed) == 0)
        add_text(advice,
                 "Nothing %shas to stay in float32 in %s: %s, the best choice, would remove %s of "
                 "the error.",
                 found->needed || found->given ? "else " : "", name, autocast_site_name(best),
                 percent(most).text);
}

static void write_masters(struct advice *advice, const struct audit *audit) {
    const struct audit_update *update = &audit->update;
    if (update->all.changed == 0) return;
    add_text(advice,
             "Master weights stay in fp32: of the updates of step %" PRId64 " (lr %.3g) a bf16 "
             "master would lose %s, an fp16 one %s.%s",
             update->step, update->lr, percent(update_lost(&update->all, AUDIT_BF16)).text,
             percent(update_lost(&update->all, AUDIT_FP16)).text,
             audit->subject.fresh ? " Adam's first step is not typical: name a checkpoint with "
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

static void find_divergence(struct advice *advice, const struct audit *audit) {
    const struct config *config = &audit->subject.config;
    double equal = log((double)config->model.vocab_size), loss = audit->reference.loss;
    char largest[DIVERGENCE_TEXT_MAX / 2];
    advice->diverged[0] = '\0';
    if (loss <= equal + 1) return;
    largest_text(largest, sizeof largest, &audit->reference);
    snprintf(
        advice->diverged, sizeof advice->diverged,
        "The loss itself has diverged: it is %.3g in fp32 too, and equal chances for all %" PRId64
        " tokens give %.3g.%s Train again with a lower optimizer.lr (it is %.3g), more "
        "warmup_steps or a grad_clip.",
        loss, config->model.vocab_size, equal, largest, config->optimizer.lr);
}

void advice_make(struct advice *advice, const struct audit *audit) {
    /* loss_scale.init_scale is limited to the range from min_scale to 2^32. */
    int smallest = (int)ceil(log2(audit->subject.config.loss_scale.min_scale));
    *advice = (struct advice){.tolerance = tolerance_of(audit), .texts = cJSON_CreateArray()};
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *found = &audit->formats[i];
        struct advice_format *format = &advice->formats[i];
        if (!found->made) continue;
        choose_sites(format, found, advice->tolerance);
        format->fit = found->usable && format->error <= advice->tolerance;
        int start = found->safe_scale - ADVICE_MARGIN;
        format->init_scale = start < smallest ? smallest : start > 32 ? 32 : start;
    }
    advice->format = choose_format(advice, audit);
    find_divergence(advice, audit);
    if (advice->diverged[0]) {
        add_text(advice, "None about precision, since the loss has diverged in fp32.");
        return;
    }
    write_formats(advice, audit);
    write_scale(advice, audit);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made) write_sites(advice, audit, i);
    write_masters(advice, audit);
}

cJSON *advice_config(const struct advice *advice, const struct audit *audit, int format) {
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
