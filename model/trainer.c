#include "model/trainer.h"

#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "data/base/error.h"
#include "model/backward.h"
#include "model/evaluate.h"
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
    /* In scratch memory: neither operation wants any itself. */
    int64_t count = backend_squares(trainer->be, &gpt->gradients);
    double *squares = backend_workspace(trainer->be, (size_t)count * sizeof *squares);
    OP(trainer->be, gradient_squares, .squares = squares, .gradients = &gpt->gradients,
       .state = trainer->scaler);
    OP(trainer->be, gradient_norm, .state = trainer->scaler, .squares = squares, .count = count,
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
static void plan(struct trainer *trainer) {
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    struct memory_plan *memory = &trainer->gpt.memory;
    backend_plan_begin(be);
    begin_step(trainer);
    accumulate(trainer);
    if (trainer->config->train.grad_accum_steps > 1) accumulate(trainer);
    update(trainer);
    if (config->sample.every > 0) sample_plan(&trainer->gpt);
    be->op = be->run;
    memory->workspace = be->workspace_bytes;
    memory->batches = batches_bytes(be, trainer->gpt.capacity.rows);
    memory->library = be->device.library_bytes;
    memory->total += memory->workspace + memory->batches + memory->library;
}

static int allocate_traffic(struct trainer *trainer, char *error) {
    struct backend *be = trainer->be;
    trainer->results = backend_host_allocate(be, BACKEND_SLOTS * sizeof *trainer->results);
    if (!trainer->results) return fail(error, "out of memory");
    return batches_open(&trainer->batches, be, trainer->gpt.capacity.rows, error);
}

int trainer_open(struct trainer *trainer, const struct config *config,
                 const struct precision *precision, struct backend *be, bool allocate,
                 char *error) {
    *trainer = (struct trainer){.config = config, .be = be};
    struct gpt *gpt = &trainer->gpt;
    if (gpt_open(gpt, config, precision, be, GPT_TRAINING, error)) return -1;
    trainer->state.scaler.loss_scale =
        precision->scale_loss ? (float)config->loss_scale.init_scale : 1;
    trainer->scaler = backend_allocate(be, sizeof *trainer->scaler);
    if (!trainer->scaler) return fail(error, "out of memory");
    plan(trainer);
    if (!allocate) return 0;
    /* The model first: it asks whether there is memory for all, while nothing is taken. */
    if (gpt_allocate(gpt, error) || backend_plan_end(be, error) || allocate_traffic(trainer, error))
        return -1;
    gpt_initialize(gpt, (uint64_t)config->seed);
    trainer_restore_scaler(trainer);
    return 0;
}

void trainer_close(struct trainer *trainer) {
    struct backend *be = trainer->be;
    batches_close(&trainer->batches);
    if (trainer->results) backend_host_release(be, trainer->results);
    if (trainer->scaler) backend_release(be, trainer->scaler);
    if (trainer->gpt.be) gpt_close(&trainer->gpt);
    memset(trainer, 0, sizeof *trainer);
}

void trainer_restore_scaler(struct trainer *trainer) {
    backend_upload(trainer->be, trainer->scaler, &trainer->state.scaler, sizeof *trainer->scaler);
}

/* Infinite gradients are skipped, but not for ever. */
static int check_overflow(const struct trainer *trainer, int64_t at, char *error) {
    const struct step_state *s = &trainer->state.scaler;
    long long step = (long long)at;
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

int trainer_begin_step(struct trainer *trainer, const struct loader *loader, char *error) {
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    int64_t batch = config->train.micro_batch_size, micro_steps = config->train.grad_accum_steps;
    assert(trainer->unfinished < BACKEND_SLOTS);
    gpt_set_batch(&trainer->gpt, batch, config->data.seq_len);
    begin_step(trainer);
    for (int64_t micro = 0; micro < micro_steps; micro++) {
        int64_t first_sample = (trainer->state.step * micro_steps + micro) * batch;
        if (batches_put(&trainer->batches, &trainer->gpt, loader, first_sample, error)) return -1;
        accumulate(trainer);
    }
    double lr = schedule_lr(config, trainer->state.step);
    update(trainer);
    trainer->state.step++;
    trainer->state.tokens += step_tokens(trainer);
    int slot = (trainer->first_queued + trainer->unfinished++) % BACKEND_SLOTS;
    trainer->queued[slot] = (struct queued_step){trainer->state.step, trainer->state.tokens, lr};
    backend_fetch(be, slot, &trainer->results[slot], trainer->scaler, sizeof *trainer->scaler);
    return 0;
}

int trainer_end_step(struct trainer *trainer, struct step_report *report, char *error) {
    struct backend *be = trainer->be;
    int slot = trainer->first_queued;
    assert(trainer->unfinished > 0);
    backend_fetched(be, slot);
    trainer->first_queued = (slot + 1) % BACKEND_SLOTS;
    trainer->unfinished--;
    if (be->failure[0]) return fail(error, "%s", be->failure);
    const struct queued_step *queued = &trainer->queued[slot];
    const struct step_state *result = &trainer->results[slot];
    *report = (struct step_report){
        .step = queued->step,
        .tokens = queued->tokens,
        .loss = result->loss,
        .gradient_norm = result->gradient_norm,
        .loss_scale = trainer->state.scaler.loss_scale, /* that the step before left */
        .lr = queued->lr,
        .skipped = result->found_inf,
    };
    trainer->state.scaler = *result;
    return check_overflow(trainer, queued->step, error);
}

int trainer_evaluate(struct trainer *trainer, double *loss, const struct loader *loader,
                     int64_t batches, char *error) {
    assert(trainer->unfinished == 0);
    struct evaluator evaluator = {
        .gpt = &trainer->gpt,
        .batches = &trainer->batches,
        .sum = &trainer->scaler->loss, /* free between steps, likewise the results */
        .results = {&trainer->results[0].loss, &trainer->results[1].loss},
        .stop = trainer->stop,
    };
    return evaluate(&evaluator, loss, loader, batches * trainer->gpt.capacity.batch, error);
}
