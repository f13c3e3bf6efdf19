#include "model/trainer.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "data/error.h"
#include "model/backward.h"
#include "model/forward.h"
#include "model/sample.h"
#include "model/schedule.h"

_Static_assert((int)BACKEND_ERROR_MAX == (int)ERROR_MAX, "both rooms write into one buffer");

enum {
    SKIPS_AT_FLOOR_MAX = 8,  /* infinite gradients in a row at the smallest loss scale */
    SKIPS_UNSCALED_MAX = 10, /* the same where there is no loss scale to lower */
};

static int64_t micro_batch_tokens(const struct trainer *trainer) {
    return trainer->gpt.capacity.rows;
}

static int64_t step_tokens(const struct trainer *trainer) {
    return micro_batch_tokens(trainer) * trainer->config->train.grad_accum_steps;
}

/* Forward and backward of the micro-batch in place. */
static void accumulate(struct trainer *trainer) {
    struct gpt *gpt = &trainer->gpt;
    float weight = 1.0f / (float)step_tokens(trainer);
    gpt_forward(gpt);
    gpt_loss(gpt, &trainer->scaler->loss_scale, weight);
    OP(trainer->be, loss_sum, .total = &trainer->scaler->loss,
       .losses = gpt->activations.losses.data, .count = gpt->shape.rows, .weight = weight);
    gpt_backward(gpt);
    gpt->accumulate = true;
}

static void update_part(struct trainer *trainer, int64_t first, int64_t count, double lr,
                        double weight_decay) {
    struct gpt *gpt = &trainer->gpt;
    const struct config *config = trainer->config;
    struct tensor master = tensor_range(&gpt->master, first, count);
    struct tensor moment1 = tensor_range(&gpt->moment1, first, count);
    struct tensor moment2 = tensor_range(&gpt->moment2, first, count);
    struct tensor gradients = tensor_range(&gpt->gradients, first, count);
    struct tensor lower = tensor_range(&gpt->lower, first, count);
    bool has_lower = gpt->precision.lower != DTYPE_F32;
    OP(trainer->be, adamw, .master = &master, .moment1 = &moment1, .moment2 = &moment2,
       .lower = has_lower ? &lower : NULL, .gradients = &gradients, .state = trainer->scaler,
       .lr = lr, .beta1 = config->optimizer.beta1, .beta2 = config->optimizer.beta2,
       .epsilon = config->optimizer.eps, .weight_decay = weight_decay);
}

static void update(struct trainer *trainer) {
    struct gpt *gpt = &trainer->gpt;
    const struct config *config = trainer->config;
    double lr = schedule_lr(config, trainer->state.step);
    OP(trainer->be, gradient_norm, .state = trainer->scaler, .gradients = &gpt->gradients,
       .grad_clip = (float)config->optimizer.grad_clip);
    update_part(trainer, 0, gpt->decayed, lr, config->optimizer.weight_decay);
    update_part(trainer, gpt->decayed, gpt->count - gpt->decayed, lr, 0);
    OP(trainer->be, loss_scale_update, .state = trainer->scaler,
       .dynamic = gpt->precision.scale_loss,
       .growth_factor = (float)config->loss_scale.growth_factor,
       .backoff_factor = (float)config->loss_scale.backoff_factor,
       .min_scale = (float)config->loss_scale.min_scale,
       .growth_interval = (int32_t)config->loss_scale.growth_interval);
}

static void begin_step(struct trainer *trainer) {
    gpt_clear_gradients(&trainer->gpt);
    OP(trainer->be, clear, .data = &trainer->scaler->loss, .bytes = sizeof(float));
}

/* Walks every operation of a step with the plan table: the first micro-batch and, as its products
 * are others, a further one. */
static int plan(struct trainer *trainer, bool allocate, char *error) {
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    bool samples = config->sample.every > 0 && config->data.tokenizer == CONFIG_TOKENIZER_BYTES;
    backend_plan_begin(be);
    begin_step(trainer);
    accumulate(trainer);
    if (trainer->config->train.grad_accum_steps > 1) accumulate(trainer);
    update(trainer);
    if (samples) sample_plan(&trainer->gpt);
    trainer->gpt.memory.workspace = be->workspace_bytes;
    trainer->gpt.memory.total += be->workspace_bytes;
    if (allocate) return backend_plan_end(be, error);
    be->op = be->run;
    return 0;
}

int trainer_open(struct trainer *trainer, const struct config *config,
                 const struct precision *precision, struct backend *be, bool allocate,
                 char *error) {
    *trainer = (struct trainer){.config = config, .be = be};
    struct gpt *gpt = &trainer->gpt;
    if (gpt_open(gpt, config, precision, be, true, error)) return -1;
    trainer->state.scaler.loss_scale =
        precision->scale_loss ? (float)config->loss_scale.init_scale : 1;
    trainer->scaler = be->allocate(be, sizeof *trainer->scaler);
    if (!trainer->scaler) return fail(error, "out of memory");
    if (plan(trainer, allocate, error)) return -1;
    if (!allocate) return 0;
    size_t bytes = (size_t)gpt->capacity.rows * sizeof(int32_t);
    trainer->inputs = malloc(bytes);
    trainer->targets = malloc(bytes);
    if (!trainer->inputs || !trainer->targets)
        return fail(error, "out of memory for a batch of %zu bytes", bytes);
    if (gpt_allocate(gpt, error)) return -1;
    gpt_initialize(gpt, (uint64_t)config->seed);
    trainer_restore_scaler(trainer);
    return 0;
}

void trainer_close(struct trainer *trainer) {
    if (trainer->scaler) trainer->be->release(trainer->be, trainer->scaler);
    free(trainer->inputs);
    free(trainer->targets);
    if (trainer->gpt.be) gpt_close(&trainer->gpt);
    memset(trainer, 0, sizeof *trainer);
}

void trainer_restore_scaler(struct trainer *trainer) {
    trainer->be->upload(trainer->be, trainer->scaler, &trainer->state.scaler,
                        sizeof *trainer->scaler);
}

static int fetch(struct trainer *trainer, const struct loader *loader, int64_t first_sample,
                 char *error) {
    struct gpt *gpt = &trainer->gpt;
    size_t bytes = (size_t)gpt->shape.rows * sizeof(int32_t);
    if (loader_fetch(loader, trainer->inputs, trainer->targets, (uint64_t)first_sample,
                     (int)gpt->shape.batch, error))
        return -1;
    trainer->be->upload(trainer->be, gpt->activations.tokens, trainer->inputs, bytes);
    trainer->be->upload(trainer->be, gpt->activations.targets, trainer->targets, bytes);
    return 0;
}

/* Infinite gradients are skipped, but not for ever. */
static int check_overflow(const struct trainer *trainer, char *error) {
    const struct step_state *s = &trainer->state.scaler;
    long long step = (long long)trainer->state.step;
    if (trainer->gpt.precision.scale_loss && s->at_floor >= SKIPS_AT_FLOOR_MAX)
        return fail(error,
                    "step %lld: gradients overflowed %d times in a row at loss_scale.min_scale = "
                    "%g\n"
                    "the model diverges or fp16 cannot hold its values: try \"precision\": "
                    "\"bf16\", a lower optimizer.lr, more warmup_steps, or grad_clip",
                    step, s->at_floor, trainer->config->loss_scale.min_scale);
    if (!trainer->gpt.precision.scale_loss && s->skipped_in_row >= SKIPS_UNSCALED_MAX)
        return fail(error,
                    "step %lld: gradients were not finite %d times in a row (loss %g)\n"
                    "the model has diverged: try a lower optimizer.lr, more warmup_steps, or "
                    "grad_clip, from an earlier checkpoint",
                    step, s->skipped_in_row, s->loss);
    return 0;
}

int trainer_step(struct trainer *trainer, struct step_report *report, const struct loader *loader,
                 char *error) {
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    int64_t batch = config->train.micro_batch_size, micro_steps = config->train.grad_accum_steps;
    float scale = trainer->state.scaler.loss_scale;
    gpt_set_batch(&trainer->gpt, batch, config->data.seq_len);
    begin_step(trainer);
    for (int64_t micro = 0; micro < micro_steps; micro++) {
        int64_t first_sample = (trainer->state.step * micro_steps + micro) * batch;
        if (fetch(trainer, loader, first_sample, error)) return -1;
        accumulate(trainer);
    }
    double lr = schedule_lr(config, trainer->state.step);
    update(trainer);
    be->download(be, &trainer->state.scaler, trainer->scaler, sizeof *trainer->scaler);
    if (be->failure[0]) return fail(error, "%s", be->failure);
    trainer->state.step++;
    trainer->state.tokens += step_tokens(trainer);
    const struct step_state *s = &trainer->state.scaler;
    *report = (struct step_report){
        .step = trainer->state.step,
        .tokens = trainer->state.tokens,
        .loss = s->loss,
        .gradient_norm = s->gradient_norm,
        .loss_scale = scale,
        .lr = lr,
        .skipped = s->found_inf,
    };
    return check_overflow(trainer, error);
}

int trainer_evaluate(struct trainer *trainer, double *loss, const struct loader *loader,
                     int64_t batches, char *error) {
    struct gpt *gpt = &trainer->gpt;
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    int64_t batch = config->train.micro_batch_size;
    double total = 0;
    gpt_set_batch(gpt, batch, config->data.seq_len);
    for (int64_t i = 0; i < batches; i++) {
        if (trainer->stop && *trainer->stop) return 1;
        if (fetch(trainer, loader, i * batch, error)) return -1;
        gpt_forward(gpt);
        gpt_loss(gpt, NULL, 0);
        /* The slot of the step's own loss is free between steps. */
        float mean = 0;
        OP(be, clear, .data = &trainer->scaler->loss, .bytes = sizeof(float));
        OP(be, loss_sum, .total = &trainer->scaler->loss, .losses = gpt->activations.losses.data,
           .count = gpt->shape.rows, .weight = 1.0f / (float)gpt->shape.rows);
        be->download(be, &mean, &trainer->scaler->loss, sizeof mean);
        total += mean;
    }
    if (be->failure[0]) return fail(error, "%s", be->failure);
    *loss = total / (double)batches;
    return 0;
}
