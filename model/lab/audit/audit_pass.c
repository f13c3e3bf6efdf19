#include "model/lab/audit/audit_pass.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "model/backward.h"
#include "model/forward.h"

/* Watches the operations of one micro-batch. */
struct watcher {
    struct observer observer; /* first, so that it is found behind one */
    struct audit_pass *pass;
    const struct audit_pass *reference;
    struct gpt *gpt;
    int batch, batches;
    char *raw;     /* stb_ds array: a tensor as it is stored */
    float *floats; /* stb_ds array */
    bool out_of_memory;
};

/* The values of a tensor as fp32, valid until the next call. */
static const float *fetch(struct watcher *watcher, const struct tensor *tensor) {
    struct backend *be = watcher->gpt->be;
    size_t count = (size_t)tensor_count(tensor), bytes = tensor_bytes(tensor);
    arrsetlen(watcher->raw, bytes);
    arrsetlen(watcher->floats, count);
    backend_download(be, watcher->raw, tensor->data, bytes);
    return dtype_widen(watcher->floats, watcher->raw, tensor->dtype, 0, count);
}

static void add(struct watcher *watcher, struct record *record, const struct record *reference,
                const struct tensor *tensor, int64_t first, int64_t total, float unscale) {
    record->stored = tensor->dtype;
    struct record_values values = {
        .values = fetch(watcher, tensor),
        .first = first,
        .count = tensor_count(tensor),
        .total = total,
        .batch = watcher->batch,
        .batches = watcher->batches,
        .unscale = unscale,
    };
    if (record_add(record, reference, &values)) watcher->out_of_memory = true;
}

static void watch(struct observer *observer, enum operation_id id, const void *args) {
    struct watcher *watcher = (struct watcher *)observer;
    struct audit_pass *pass = watcher->pass;
    const struct audit_pass *reference = watcher->reference;
    struct traced traced[TRACED_MAX];
    int count = trace_operation(traced, watcher->gpt, operation_label(id, args));
    for (int i = 0; i < count; i++) {
        const struct traced *found = &traced[i];
        int place = found->place;
        struct record *record = &pass->places[place][found->layer];
        add(watcher, record, reference ? &reference->places[place][found->layer] : NULL,
            &found->tensor, found->first, found->total,
            place_is_gradient(place) ? 1 / pass->loss_scale : 1);
        if (pass->first_infinite < 0 && record->magnitudes.infinite > 0)
            pass->first_infinite = place;
    }
}

static void watch_parameters(struct watcher *watcher) {
    const struct gpt *gpt = watcher->gpt;
    struct audit_pass *pass = watcher->pass;
    const struct audit_pass *reference = watcher->reference;
    for (int i = 0; i < pass->parameter_count; i++) {
        struct tensor view = gpt_parameter_view(&gpt->gradients, &gpt->list[i]);
        add(watcher, &pass->parameters[i], reference ? &reference->parameters[i] : NULL, &view, 0,
            tensor_count(&view), 1 / pass->loss_scale);
        if (pass->parameters[i].magnitudes.infinite > 0) pass->finite = false;
    }
}

static void watch_weights(struct watcher *watcher) {
    const struct gpt *gpt = watcher->gpt;
    for (int i = 0; i < watcher->pass->parameter_count; i++) {
        int64_t count = parameter_count(&gpt->list[i]);
        arrsetlen(watcher->floats, (size_t)count);
        masters_download(&gpt->masters, gpt->be, watcher->floats, gpt->list[i].offset, count);
        magnitudes_add(&watcher->pass->weights[i], watcher->floats, (size_t)count);
    }
}

static double sum_of_losses(struct watcher *watcher) {
    const struct tensor *losses = &watcher->gpt->activations.losses;
    int64_t count = tensor_count(losses);
    const float *values = fetch(watcher, losses);
    double total = 0;
    for (int64_t i = 0; i < count; i++) total += (double)values[i];
    return total;
}

/* The part of this micro-batch in the mean loss of all. */
static double share_of_loss(struct watcher *watcher, const struct subject *subject) {
    double own = (double)subject_counted(subject, watcher->batch, 1);
    double all = (double)subject_counted(subject, 0, watcher->batches);
    return own > 0 ? sum_of_losses(watcher) / own / (all / own) : 0;
}

static int allocate(struct audit_pass *pass, const struct gpt *gpt, struct error *error) {
    size_t parameters = (size_t)pass->parameter_count;
    bool complete = true;
    for (int place = 0; place < PLACES; place++) {
        size_t layers = (size_t)(pass->layers[place] = place_layers(place, &gpt->shape));
        pass->places[place] = calloc(layers, sizeof *pass->places[place]);
        complete = complete && (pass->places[place] || layers == 0);
    }
    pass->parameters = calloc(parameters, sizeof *pass->parameters);
    pass->weights = calloc(parameters, sizeof *pass->weights);
    pass->list = calloc(parameters, sizeof *pass->list);
    if (!complete || !pass->parameters || !pass->weights || !pass->list)
        return fail(error, "out of memory for the figures of an audit");
    memcpy(pass->list, gpt->list, parameters * sizeof *pass->list);
    return 0;
}

void audit_pass_free(struct audit_pass *pass) {
    for (int place = 0; place < PLACES; place++) {
        for (int i = 0; pass->places[place] && i < pass->layers[place]; i++)
            free(pass->places[place][i].samples);
        free(pass->places[place]);
    }
    for (int i = 0; pass->parameters && i < pass->parameter_count; i++)
        free(pass->parameters[i].samples);
    free(pass->parameters);
    free(pass->weights);
    free(pass->list);
    memset(pass, 0, sizeof *pass);
}

/* The squared distance of each micro-batch's gradient from their mean, over that of the mean from
 * zero, both without the part that is there by chance alone. */
static double noise_of(const struct audit_pass *pass, int batches) {
    double spread = 0, square = 0;
    if (batches < 2) return 0;
    for (int i = 0; i < pass->parameter_count; i++) {
        const struct record *record = &pass->parameters[i];
        for (int64_t k = 0; k < record->sample_count; k++) {
            double sum = 0, squares = 0, weight = (double)record->stride;
            for (int batch = 0; batch < batches; batch++) {
                double value = (double)record->samples[batch * record->sample_count + k];
                sum += value;
                squares += value * value;
            }
            double variance = (squares - sum * sum / batches) / (batches - 1);
            spread += variance * weight;
            square += (sum * sum / batches - variance) / batches * weight;
        }
    }
    return square > 0 && spread > 0 ? sqrt(spread / square) : 0;
}

/* Of all micro-batches so far. */
static double error_so_far(const struct audit_pass *pass) {
    double difference = 0, square = 0;
    for (int i = 0; i < pass->parameter_count; i++) {
        difference += pass->parameters[i].difference;
        square += pass->parameters[i].reference;
    }
    return pass->finite ? relative_error(difference, square) : INFINITY;
}

static int run_batch(struct watcher *watcher, struct subject *subject, struct trainer *trainer,
                     enum pass_kind kind, struct error *error) {
    struct gpt *gpt = &trainer->gpt;
    gpt_clear_gradients(gpt);
    if (subject_put(subject, trainer, watcher->batch, error)) return -1;
    if (kind == PASS_TRACED) backend_observe(gpt->be, &watcher->observer);
    gpt_forward(gpt);
    gpt_loss(gpt, &trainer->optimizer.state->loss_scale, subject_weight(subject, watcher->batch));
    gpt_backward(gpt);
    backend_observe(gpt->be, NULL);
    watch_parameters(watcher);
    watcher->pass->loss += share_of_loss(watcher, subject);
    if (!isfinite(watcher->pass->loss)) watcher->pass->finite = false;
    watcher->pass->gradient_error = error_so_far(watcher->pass);
    if (watcher->batch < PASS_TRIAL_BATCHES)
        watcher->pass->first_error = watcher->pass->gradient_error;
    if (gpt->be->failure.text[0]) return fail(error, "%s", gpt->be->failure.text);
    return watcher->out_of_memory ? fail(error, "out of memory for samples of an audit") : 0;
}

int audit_pass_run(struct audit_pass *pass, struct subject *subject, struct trainer *trainer,
                   const struct audit_pass *reference, enum pass_kind kind, struct error *error) {
    struct gpt *gpt = &trainer->gpt;
    int batches = subject->repetitions;
    if (kind == PASS_TRIAL && batches > PASS_TRIAL_BATCHES) batches = PASS_TRIAL_BATCHES;
    *pass = (struct audit_pass){
        .precision = gpt->precision,
        .loss_scale = trainer->state.scaler.loss_scale,
        .parameter_count = (int)arrlen(gpt->list),
        .finite = true,
        .first_infinite = -1,
    };
    if (allocate(pass, gpt, error)) return -1;
    struct watcher watcher = {
        .observer = {.after = watch},
        .pass = pass,
        .reference = reference,
        .gpt = gpt,
        .batches = batches,
    };
    int status = 0;
    if (kind == PASS_TRACED) watch_weights(&watcher);
    for (; status == 0 && watcher.batch < batches; watcher.batch++)
        status =
            *subject->stop ? RESULT_STOPPED : run_batch(&watcher, subject, trainer, kind, error);
    if (status == 0 && !reference) pass->gradient_noise = noise_of(pass, batches);
    arrfree(watcher.floats);
    arrfree(watcher.raw);
    return status;
}

static enum pass_outcome outcome_of(struct watcher *watcher) {
    const struct gpt *gpt = watcher->gpt;
    struct magnitudes magnitudes = {0};
    if (!isfinite(sum_of_losses(watcher))) return PASS_LOSS_INFINITE;
    for (int i = 0; i < (int)arrlen(gpt->list); i++) {
        struct tensor view = gpt_parameter_view(&gpt->gradients, &gpt->list[i]);
        magnitudes_add(&magnitudes, fetch(watcher, &view), (size_t)tensor_count(&view));
    }
    return magnitudes.infinite > 0 ? PASS_GRADIENTS_INFINITE : PASS_FINITE;
}

int audit_pass_tried(const struct subject *subject, const struct precision *precision) {
    int accumulated = (int)subject->config.train.grad_accum_steps;
    bool whole = precision->gradients != DTYPE_F32 && accumulated > subject->repetitions;
    return whole ? accumulated : subject->repetitions;
}

int audit_pass_try(enum pass_outcome *outcome, struct subject *subject, struct trainer *trainer,
                   float loss_scale, struct error *error) {
    struct gpt *gpt = &trainer->gpt;
    struct watcher watcher = {.gpt = gpt};
    int accumulated = (int)subject->config.train.grad_accum_steps, status = 0;
    int batches = audit_pass_tried(subject, &gpt->precision);
    assert(gpt->precision.scale_loss);
    trainer->state.scaler.loss_scale = loss_scale;
    trainer_restore_scaler(trainer);
    *outcome = PASS_FINITE;
    for (int i = 0; *outcome == PASS_FINITE && i < batches; i++) {
        if (i % accumulated == 0) gpt_clear_gradients(gpt);
        status = *subject->stop ? RESULT_STOPPED : subject_put(subject, trainer, i, error);
        if (status) break;
        gpt_forward(gpt);
        gpt_loss(gpt, &trainer->optimizer.state->loss_scale, subject_weight(subject, i));
        gpt_backward(gpt);
        gpt->accumulate = true;
        *outcome = outcome_of(&watcher);
        if (gpt->be->failure.text[0]) status = fail(error, "%s", gpt->be->failure.text);
        if (status) break;
    }
    arrfree(watcher.floats);
    arrfree(watcher.raw);
    return status;
}
