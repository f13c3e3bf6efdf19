#include "model/lab/audit/audit_8_bit.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/observer.h"
#include "model/backward.h"
#include "model/forward.h"

/* Sums over the values of an operand of a layer. */
struct sums {
    double values, to_zero, saturated, signal, noise;
};

struct watcher {
    struct observer observer; /* first */
    struct gpt *gpt;
    struct sums *sums; /* [layers, LINEAR_COUNT, QUANTIZED_KINDS], as quantization_place has it */
    bool out_of_memory;
};

static void add_value(struct sums *sums, float value, float rounded, float scale, float max) {
    double difference = (double)value - (double)rounded;
    if (value == 0 || !isfinite(value)) return;
    sums->values++;
    sums->to_zero += rounded == 0;
    sums->saturated += fabsf(value) > 1.0001f * max * scale;
    sums->signal += (double)value * (double)value;
    sums->noise += difference * difference;
}

static void add_tensor(struct sums *sums, const struct quantize_args *args, const float *values,
                       const uint8_t *codes, const float *scales) {
    int64_t count = tensor_count(args->in), columns = tensor_columns(args->in);
    float max = dtype_f8_max(args->out->dtype);
    for (int64_t i = 0; i < count; i++) {
        int64_t group = args->by == QUANTIZE_WHOLE  ? 0
                        : args->by == QUANTIZE_ROWS ? i / columns
                                                    : i % columns;
        float rounded = f32_from_f8(codes[i], args->out->dtype) * scales[group];
        add_value(sums, values[i], rounded, scales[group], max);
    }
}

/* Each operand makes its record once, when it is first rounded. */
static void after(struct observer *observer, enum operation_id id, const void *all_args) {
    struct watcher *watcher = (struct watcher *)observer;
    const struct quantize_args *args = all_args;
    struct backend *be = watcher->gpt->be;
    if (id != ID_quantize || !args->record) return;
    size_t count = (size_t)tensor_count(args->in), bytes = tensor_bytes(args->in);
    size_t groups = args->by == QUANTIZE_WHOLE  ? 1
                    : args->by == QUANTIZE_ROWS ? (size_t)tensor_rows(args->in)
                                                : (size_t)tensor_columns(args->in);
    void *raw = malloc(bytes);
    float *wide = malloc(count * sizeof *wide), *scales = malloc(groups * sizeof *scales);
    uint8_t *codes = malloc(count);
    if (raw && wide && scales && codes) {
        backend_download(be, raw, args->in->data, bytes);
        backend_download(be, codes, args->out->data, count);
        backend_download(be, scales, args->scales, groups * sizeof *scales);
        const float *values = dtype_widen(wide, raw, args->in->dtype, 0, count);
        int64_t place = args->record - watcher->gpt->quantization.records;
        add_tensor(&watcher->sums[place], args, values, codes, scales);
    } else watcher->out_of_memory = true;
    free(raw);
    free(wide);
    free(scales);
    free(codes);
}

/* ---- passes */

static int run_batches(struct subject *subject, struct trainer *trainer, double *loss,
                       struct error *error) {
    struct gpt *gpt = &trainer->gpt;
    float *total = &trainer->optimizer.state->loss, sum;
    OP(gpt->be, clear, .data = total, .bytes = sizeof *total);
    gpt_clear_gradients(gpt);
    for (int i = 0; i < subject->repetitions; i++) {
        float weight = subject_weight(subject, 0);
        if (*subject->stop) return RESULT_STOPPED;
        if (subject_put(subject, trainer, i, error)) return -1;
        gpt_forward(gpt);
        gpt_loss(gpt, &trainer->optimizer.state->loss_scale, weight);
        OP(gpt->be, loss_sum, .total = total, .losses = gpt->activations.losses.data,
           .count = gpt->shape.rows, .weight = weight);
        gpt_backward(gpt);
        gpt->accumulate = true;
    }
    backend_download(gpt->be, &sum, total, sizeof sum);
    *loss = (double)sum;
    return gpt->be->failure.text[0] ? fail(error, "%s", gpt->be->failure.text) : 0;
}

/* |difference| / |reference| of gradients that lie as in the flat arrays. */
static double gradient_error(const struct gpt *gpt, const float *reference, struct error *error) {
    size_t count = (size_t)gpt->count, bytes = tensor_bytes(&gpt->gradients);
    void *raw = malloc(bytes);
    float *wide = malloc(count * sizeof *wide);
    double difference = 0, square = 0;
    if (!raw || !wide) fail(error, "out of memory for a copy of the gradients");
    if (raw && wide) {
        backend_download(gpt->be, raw, gpt->gradients.data, bytes);
        const float *values = dtype_widen(wide, raw, gpt->gradients.dtype, 0, count);
        for (size_t i = 0; i < count; i++) {
            double apart = (double)values[i] - (double)reference[i];
            difference += apart * apart;
            square += (double)reference[i] * (double)reference[i];
        }
    }
    bool good = raw && wide;
    free(raw);
    free(wide);
    return good ? sqrt(difference / square) : -1;
}

static int try(struct eight_bit_audit *audit, struct subject *subject, const char *name,
               const struct config *config, const float *reference, struct watcher *watcher,
               struct error *error) {
    struct eight_bit_trial *trial = &audit->trials[audit->trial_count++];
    struct trainer trainer;
    snprintf(trial->name, sizeof trial->name, "%s", name);
    if (subject_trainer(subject, &trainer, config, 1, error)) return -1;
    if (watcher) {
        watcher->gpt = &trainer.gpt;
        memcpy(audit->dtype, trainer.gpt.quantization.dtype, sizeof audit->dtype);
        for (enum autocast_site i = 0; i < AUTOCAST_SITE_COUNT; i++)
            if (linear_index(i) >= 0)
                audit->rounds[linear_index(i)] = trainer.gpt.precision.eight[i];
        backend_observe(&subject->be, &watcher->observer);
    }
    int status = run_batches(subject, &trainer, &trial->loss, error);
    backend_observe(&subject->be, NULL);
    if (status == 0) trial->gradient_error = gradient_error(&trainer.gpt, reference, error);
    trainer_close(&trainer);
    if (watcher && watcher->out_of_memory) return fail(error, "out of memory for an audit");
    return status == 0 && trial->gradient_error < 0 ? -1 : status;
}

static void finish_operand(struct eight_bit_operand *operand, const struct sums *sums,
                           int64_t layers, int64_t stride) {
    struct sums all = {0, 0, 0, 0, 0};
    operand->worst_snr = INFINITY;
    for (int64_t layer = 0; layer < layers; layer++) {
        const struct sums *one = &sums[layer * stride];
        double snr = 10 * log10(one->signal / one->noise);
        all.values += one->values, all.to_zero += one->to_zero, all.saturated += one->saturated;
        all.signal += one->signal, all.noise += one->noise;
        if (!(snr < operand->worst_snr)) continue;
        operand->worst_snr = snr;
        operand->worst_layer = (int)layer;
    }
    operand->to_zero = all.values > 0 ? all.to_zero / all.values : 0;
    operand->saturated = all.values > 0 ? all.saturated / all.values : 0;
    operand->snr = 10 * log10(all.signal / all.noise);
}

/* bf16, the config's own fp8 (watched), each recipe and format, and each layer left out. */
static int run_trials(struct eight_bit_audit *audit, struct subject *subject,
                      const struct config *given, const float *reference, struct error *error) {
    static const char *const recipes[] = {"fp8 tensor", "fp8 row"};
    static const enum config_recipe recipe_of[] = {CONFIG_RECIPE_TENSOR, CONFIG_RECIPE_ROW};
    struct config config = subject->config;
    int64_t layers = config.model.n_layer, stride = LINEAR_COUNT * QUANTIZED_KINDS;
    struct watcher watcher = {.observer = {.after = after}};
    config.precision = CONFIG_PRECISION_BF16;
    int status = try(audit, subject, "bf16", &config, reference, NULL, error);
    config.precision = CONFIG_PRECISION_FP8;
    config.fp8 = given->fp8;
    watcher.sums = calloc((size_t)(layers * stride), sizeof *watcher.sums);
    if (!watcher.sums) return fail(error, "out of memory");
    if (status == 0)
        status = try(audit, subject, "fp8 as configured", &config, reference, &watcher, error);
    for (int i = 0; i < LINEAR_COUNT * QUANTIZED_KINDS; i++)
        finish_operand(&audit->operands[i / QUANTIZED_KINDS][i % QUANTIZED_KINDS], &watcher.sums[i],
                       layers, stride);
    free(watcher.sums);
    for (int i = 0; status == 0 && i < 4; i++) {
        struct config other = config;
        char name[48];
        other.fp8.recipe = recipe_of[i / 2];
        other.fp8.format = i % 2 ? CONFIG_FORMAT_E4M3 : CONFIG_FORMAT_HYBRID;
        snprintf(name, sizeof name, "%s, %s", recipes[i / 2], i % 2 ? "e4m3" : "hybrid");
        status = try(audit, subject, name, &other, reference, NULL, error);
    }
    for (int i = 0; status == 0 && i < LINEAR_COUNT; i++) {
        struct config other = config;
        char name[48];
        struct config_words *words = &other.autocast.lower16;
        if (!audit->rounds[i]) continue;
        words->items[words->count++] = linear_words[i];
        snprintf(name, sizeof name, "%s in bf16", linear_words[i]);
        status = try(audit, subject, name, &other, reference, NULL, error);
    }
    return status;
}

int eight_bit_audit_run(struct eight_bit_audit *audit, const struct config *config,
                        const char *from, int repetitions, const volatile sig_atomic_t *stop,
                        struct error *error) {
    struct subject subject = {.repetitions = repetitions, .stop = stop};
    struct trainer trainer;
    struct config own = *config;
    own.train.grad_accum_steps = repetitions; /* the batches are a step */
    *audit = (struct eight_bit_audit){.batches = repetitions};
    snprintf(audit->config, sizeof audit->config, "%.127s", config->name);
    if (subject_open(&subject, &trainer, &own, from, error)) return -1;
    int status = run_batches(&subject, &trainer, &audit->loss, error);
    float *reference = malloc((size_t)trainer.gpt.count * sizeof *reference);
    if (status == 0 && !reference) status = fail(error, "out of memory for gradients");
    if (status == 0) { /* what computes in fp32 has gradients in fp32 */
        const struct tensor *gradients = &trainer.gpt.gradients;
        assert(gradients->dtype == DTYPE_F32);
        backend_download(&subject.be, reference, gradients->data, tensor_bytes(gradients));
    }
    trainer_close(&trainer);
    if (status == 0) status = run_trials(audit, &subject, config, reference, error);
    free(reference);
    subject_close(&subject);
    return status;
}
