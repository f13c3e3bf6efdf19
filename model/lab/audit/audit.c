#include "model/lab/audit/audit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

/* ---- one format */

unsigned sites_of_config(const struct config *config) {
    unsigned sites = 0;
    for (enum autocast_site id = 0; id < AUTOCAST_SITE_COUNT; id++)
        if (precision_lists_site(&config->autocast.float32, id)) sites |= 1u << id;
    return sites;
}

void sites_set(struct config *config, unsigned sites) {
    struct config_words *list = &config->autocast.float32;
    list->count = 0;
    for (enum autocast_site id = 0; id < AUTOCAST_SITE_COUNT; id++)
        if (sites & (1u << id) && autocast_site_is_choice(id))
            list->items[list->count++] = autocast_site_name(id);
}

cJSON *sites_json(unsigned sites) {
    cJSON *list = cJSON_CreateArray();
    for (enum autocast_site id = 0; id < AUTOCAST_SITE_COUNT; id++)
        if (sites & (1u << id))
            cJSON_AddItemToArray(list, cJSON_CreateString(autocast_site_name(id)));
    return list;
}

enum {
    SCALE_LOW = -14, /* lower bound of the search, unless loss_scale.min_scale is smaller */
    SCALE_MAX = 120, /* upper bound: the scale itself is an fp32 number */
};

/* Bit of autocast.residual, after the bits of autocast.float32. */
enum { RESIDUAL = 1 << AUTOCAST_SITE_COUNT };

static int scale_min(const struct audit_format *format) {
    int smallest = (int)ceil(log2(format->config.loss_scale.min_scale));
    return smallest < SCALE_LOW ? smallest : SCALE_LOW;
}

void audit_format_gradients(struct magnitudes *magnitudes, const struct audit_format *format,
                            const struct audit_pass *reference) {
    const struct precision *precision = &format->pass.precision;
    *magnitudes = (struct magnitudes){0};
    for (int id = 0; id <= PARAMETERS; id++) {
        if (!tensor_id_is_gradient(id) || tensor_id_dtype(id, precision) == DTYPE_F32) continue;
        for (int layer = 0; layer < arrlen(reference->records[id]); layer++)
            magnitudes_merge(magnitudes, &reference->records[id][layer].magnitudes);
    }
}

/* Returns the bits of the settings that keep a tensor in fp32. */
static unsigned sites_for(int id) {
    unsigned sites = tensor_id_sites(id);
    return sites ? sites : RESIDUAL;
}

/* Returns the sites that keep in fp32 every tensor whose fp32 values are beyond the fp16 range. */
static unsigned overflowing(const struct precision *precision, const struct audit_pass *reference) {
    unsigned sites = 0;
    for (int id = 0; id < TENSOR_IDS; id++) {
        if (tensor_id_is_gradient(id) || tensor_id_dtype(id, precision) != DTYPE_F16) continue;
        for (int layer = 0; layer < arrlen(reference->records[id]); layer++)
            if ((double)reference->records[id][layer].magnitudes.largest >= FP16_OVERFLOW)
                sites |= sites_for(id);
    }
    for (int i = 0; i < arrlen(reference->list); i++)
        if (precision->site[reference->list[i].site] == DTYPE_F16 &&
            (double)reference->weights[i].largest >= FP16_OVERFLOW)
            sites |= 1u << reference->list[i].site;
    return sites;
}

/* Returns the sites without those that take the dtype of their input, if the operation that
 * writes that input is in `all`. */
static unsigned without_followers(unsigned sites, unsigned all) {
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        bool follows = !a->residual && autocast_site_policy(a->reader) == POLICY_INPUT;
        if (follows && all & 1u << a->writer) sites &= ~(1u << a->reader);
    }
    return sites;
}

/* Adds sites to the config. Returns true if any was new. */
static bool need(struct audit_format *format, unsigned sites) {
    unsigned before = format->given | format->needed;
    bool residual = sites & RESIDUAL && format->config.autocast.residual == CONFIG_DTYPE_LOWER;
    if (residual) format->config.autocast.residual = CONFIG_DTYPE_FLOAT32;
    format->needs_residual = format->needs_residual || residual;
    format->needed |= sites & ~format->given & ~(unsigned)RESIDUAL;
    format->needed = without_followers(format->needed, format->needed | format->given);
    unsigned after = format->given | format->needed;
    sites_set(&format->config, after);
    return after != before || residual;
}

/* Searches the largest power of two at which the pass is finite, down or up from the predicted one.
 * Sets *found. If the loss itself is infinite, the search ends without a scale. */
static int search_scale(struct audit_format *format, bool *found, struct subject *subject,
                        struct trainer *trainer, struct error *error) {
    int exponent = format->predicted_scale, smallest = scale_min(format);
    enum pass_outcome outcome = PASS_GRADIENTS_INFINITE;
    int status = audit_pass_try(&outcome, subject, trainer, ldexpf(1, exponent), error);
    bool down = status == 0 && outcome == PASS_GRADIENTS_INFINITE;
    while (status == 0 && outcome == PASS_GRADIENTS_INFINITE && exponent > smallest)
        status = audit_pass_try(&outcome, subject, trainer, ldexpf(1, --exponent), error);
    *found = outcome == PASS_FINITE;
    while (status == 0 && !down && outcome == PASS_FINITE && exponent < SCALE_MAX) {
        status = audit_pass_try(&outcome, subject, trainer, ldexpf(1, exponent + 1), error);
        if (outcome == PASS_FINITE) exponent++;
    }
    format->safe_scale = exponent;
    return status;
}

static void predict_scale(struct audit_format *format, const struct subject *subject,
                          const struct audit_pass *reference) {
    struct magnitudes magnitudes;
    audit_format_gradients(&magnitudes, format, reference);
    if (format->pass.precision.gradients != DTYPE_F32) /* the step's sum is in 16 bit too */
        magnitudes.largest *= (float)subject->config.train.grad_accum_steps;
    format->predicts = magnitudes_safe_scale(&magnitudes, &format->predicted_scale);
    if (!format->predicts) format->predicted_scale = 0;
    int smallest = scale_min(format);
    if (format->predicted_scale < smallest) format->predicted_scale = smallest;
    if (format->predicted_scale > SCALE_MAX) format->predicted_scale = SCALE_MAX;
}

/* Runs a pass at the best scale with the sites needed so far. If fp32 values overflow fp16, or
 * something is infinite at every scale, adds settings that keep it in float32 and sets *retry. */
static int attempt(struct audit_format *format, bool *retry, struct subject *subject,
                   const struct audit_pass *reference, struct error *error) {
    struct trainer trainer;
    bool found = true;
    bool scales = format->dtype == DTYPE_F16;
    *retry = false;
    audit_pass_free(&format->pass);
    if (subject_trainer(subject, &trainer, &format->config, 1, error)) return -1;
    format->pass.precision = trainer.model.precision;
    if (scales && need(format, overflowing(&format->pass.precision, reference))) {
        trainer_close(&trainer);
        *retry = true;
        return 0;
    }
    if (scales) predict_scale(format, subject, reference);
    int status = scales ? search_scale(format, &found, subject, &trainer, error) : 0;
    float safe = ldexpf(1, format->safe_scale);
    trainer.state.scaler.loss_scale = !scales                      ? 1
                                      : subject->loss_scale > safe ? safe
                                                                   : subject->loss_scale;
    trainer_restore_scaler(&trainer);
    if (status == 0)
        status = audit_pass_run(&format->pass, subject, &trainer, reference, PASS_TRACED, error);
    trainer_close(&trainer);
    if (status) return status;
    format->usable = found && format->pass.finite;
    if (!format->usable && scales && format->pass.first_infinite >= 0)
        *retry = need(format, sites_for(format->pass.first_infinite));
    return 0;
}

static int run_trial(struct audit_format *format, enum autocast_site operation,
                     struct subject *subject, const struct audit_pass *reference,
                     struct error *error) {
    struct config config = format->config;
    struct trainer trainer;
    struct audit_pass pass;
    sites_set(&config, format->given | format->needed | 1u << operation);
    if (subject_trainer(subject, &trainer, &config, format->pass.loss_scale, error)) return -1;
    int status = audit_pass_run(&pass, subject, &trainer, reference, PASS_TRIAL, error);
    format->trials[operation] = (struct audit_trial){status == 0, pass.gradient_error};
    audit_pass_free(&pass);
    trainer_close(&trainer);
    return status;
}

/* Audits dtype (bf16 or fp16) against the reference. Returns RESULT_STOPPED after a signal. */
static int run_format(struct audit_format *format, enum dtype dtype, struct subject *subject,
                      const struct audit_pass *reference, struct error *error) {
    *format = (struct audit_format){.made = true, .dtype = dtype, .config = subject->config};
    format->config.precision = (enum config_precision)dtype;
    format->given = sites_of_config(&subject->config);
    bool retry = true;
    subject_print_progress(subject, "%s", dtype_name(dtype));
    for (int i = 0; retry && i <= AUTOCAST_SITE_COUNT + 2; i++) {
        int status = attempt(format, &retry, subject, reference, error);
        if (status) return status;
    }
    if (!format->usable) return 0;
    for (int i = 0; i < AUTOCAST_SITE_COUNT; i++) {
        if (!autocast_site_is_choice(i) || (format->given | format->needed) & (1u << i)) continue;
        subject_print_progress(subject, "%s with %s in float32", dtype_name(dtype),
                               autocast_site_name(i));
        int status = run_trial(format, i, subject, reference, error);
        if (status) return status;
    }
    return 0;
}

double audit_format_removed(const struct audit_format *format, enum autocast_site operation) {
    const struct audit_trial *trial = &format->trials[operation];
    double error = format->pass.first_error;
    return trial->made && error > 0 ? 1 - trial->gradient_error / error : 0;
}

/* ---- both formats */

static const enum dtype dtypes[] = {[AUDIT_BF16] = DTYPE_BF16, [AUDIT_FP16] = DTYPE_F16};

const char *audit_name(int format) {
    return dtype_name(dtypes[format]);
}

static float rounded(float value, int format) {
    return format == AUDIT_BF16 ? f32_from_bf16(bf16_from_f32(value))
                                : f32_from_f16(f16_from_f32(value));
}

void update_add(struct update *update, const float *before, const float *after, size_t count) {
    for (size_t i = 0; i < count; i++) {
        double change = (double)after[i] - (double)before[i];
        if (change == 0) continue;
        update->changed++;
        update->signal += change * change;
        for (int format = 0; format < AUDIT_FORMATS; format++) {
            float master = rounded(before[i], format);
            float moved = rounded((float)((double)master + change), format);
            double wrong = (double)moved - (double)master - change;
            update->lost[format] += moved == master;
            update->noise[format] += wrong * wrong;
        }
    }
}

double update_lost(const struct update *update, int format) {
    return update->changed ? (double)update->lost[format] / (double)update->changed : 0;
}

double update_decibel(const struct update *update, int format) {
    if (update->noise[format] == 0) return INFINITY;
    return 10 * log10(update->signal / update->noise[format]);
}

/* Takes one step of the reference. */
static int run_update(struct audit_update *update, struct subject *subject,
                      struct trainer *reference, struct error *error) {
    const struct model *model = &reference->model;
    struct step_report report;
    if (trainer_begin_step(reference, &subject->text.loader, error)) return -1;
    if (trainer_end_step(reference, &report, error)) return -1;
    *update = (struct audit_update){.step = report.step, .lr = report.lr};
    float *after = NULL; /* stb_ds array */
    arrsetlen(after, (size_t)model->count);
    masters_download(&model->masters, model->be, after, 0, model->count);
    update_add(&update->all, subject->masters, after, (size_t)model->count);
    for (size_t i = 0; i < arrlenu(model->list); i++) {
        int64_t first = model->list[i].offset, count = parameter_count(&model->list[i]);
        struct update one = {0};
        update_add(&one, subject->masters + first, after + first, (size_t)count);
        arrput(update->parameters, one);
    }
    arrfree(after);
    return 0;
}

/* Runs the fp32 reference pass, and one training step of it. */
static int run_reference(struct audit *audit, struct trainer *trainer, struct error *error) {
    struct subject *subject = &audit->subject;
    int status = audit_pass_run(&audit->reference, subject, trainer, NULL, PASS_TRACED, error);
    if (status == 0 && !audit->reference.finite)
        return fail(error,
                    "in fp32 too the loss (%g) or its gradients are not finite: there is nothing "
                    "to audit\nname an earlier checkpoint with --from",
                    audit->reference.loss);
    if (status == 0 && *subject->stop) status = RESULT_STOPPED;
    return status ? status : run_update(&audit->update, subject, trainer, error);
}

int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct error *error) {
    struct trainer trainer;
    memset(audit, 0, sizeof *audit);
    audit->subject.stop = stop;
    audit->subject.repetitions = repetitions;
    if (subject_open(&audit->subject, &trainer, config, from, error)) return -1;
    int status = run_reference(audit, &trainer, error);
    trainer_close(&trainer);
    for (int i = 0; status == 0 && i < AUDIT_FORMATS; i++)
        if (wanted[i])
            status = run_format(&audit->formats[i], dtypes[i], &audit->subject, &audit->reference,
                                error);
    return status;
}

void audit_free(struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++) audit_pass_free(&audit->formats[i].pass);
    audit_pass_free(&audit->reference);
    arrfree(audit->update.parameters);
    subject_close(&audit->subject);
}
