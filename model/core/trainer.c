#include "model/core/trainer.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "model/core/backward.h"
#include "model/core/forward.h"
#include "model/core/gpt_initialize.h"
#include "model/core/loglikelihood.h"
#include "model/core/sample.h"
#include "model/core/schedule.h"

enum {
    SKIPS_AT_FLOOR_MAX = 8,  /* infinite gradients in a row at the smallest loss scale */
    SKIPS_UNSCALED_MAX = 10, /* the same without a loss scale */
};

/* Parts of a step, each with a graph of backend_graph for every slot of the batches. */
enum part { PART_FIRST_MICRO, PART_FURTHER_MICRO, PART_UPDATE, PARTS };
_Static_assert(PARTS *BACKEND_SLOTS == BACKEND_GRAPHS, "a graph for each");

struct micro {
    struct trainer *trainer;
    bool first, last; /* first and last micro-batch of the step */
};

static void begin_step(struct trainer *trainer) {
    gpt_clear_gradients(&trainer->gpt);
    quantization_begin_step(&trainer->gpt.quantization);
    OP(trainer->be, clear, .data = &trainer->optimizer.state->loss, .bytes = sizeof(float));
    if (trainer->gpt.prefers)
        OP(trainer->be, clear, .data = &trainer->optimizer.state->preference,
           .bytes = sizeof(struct preference_sums));
}

/* Runs forward and backward on the current micro-batch. */
static void accumulate(void *argument) {
    const struct micro *micro = argument;
    struct trainer *trainer = micro->trainer;
    struct gpt *gpt = &trainer->gpt;
    if (micro->first) begin_step(trainer);
    gpt->accumulate = !micro->first;
    gpt->last_micro_batch = micro->last;
    gpt->dropout.active = gpt->backward_follows = true;
    gpt->quantization.weights_rounded = !micro->first;
    gpt_forward(gpt);
    gpt_loss(gpt, &trainer->optimizer.state->loss_scale, &trainer->optimizer.state->preference);
    OP(trainer->be, loss_sum, .total = &trainer->optimizer.state->loss,
       .losses = gpt->activations.losses.data, .count = gpt->shape.rows,
       .inputs = gpt->activations.inputs);
    gpt_backward(gpt);
    gpt->dropout.active = gpt->quantization.weights_rounded = gpt->backward_follows = false;
}

/* Records are gathered before the weights are sent, so that they do not wait for the weights. */
static void end_step(void *argument) {
    struct trainer *trainer = argument;
    quantization_end_step(&trainer->gpt.quantization, trainer->optimizer.state,
                          trainer->gpt.activations.inputs);
    optimizer_step(&trainer->optimizer);
}

/* Runs every operation of a step with the plan table: the first micro-batch and, since its matmuls
 * differ, a further one. */
static void plan(struct trainer *trainer) {
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    struct memory_plan *memory = &trainer->gpt.memory;
    backend_plan_begin(be);
    accumulate(&(struct micro){trainer, true, true});
    if (trainer->config->train.grad_accum_steps > 1)
        accumulate(&(struct micro){trainer, false, true});
    end_step(trainer);
    if (config->sample.every > 0) sample_plan(&trainer->gpt);
    if (config->eval.choices[0]) scorer_plan(&trainer->gpt);
    be->op = be->run;
    memory->workspace = be->workspace_bytes;
    memory->batches = batches_bytes(&trainer->gpt);
    if (config->eval.choices[0]) memory->batches += scorer_bytes(&trainer->gpt);
    memory->library = be->device.library_bytes;
}

static int allocate_traffic(struct trainer *trainer, struct error *error) {
    struct backend *be = trainer->be;
    trainer->results = backend_host_allocate(be, BACKEND_SLOTS * sizeof *trainer->results);
    if (!trainer->results) return fail(error, "out of memory");
    return batches_open(&trainer->batches, &trainer->gpt, error);
}

int trainer_open(struct trainer *trainer, const struct config *config,
                 const struct precision *precision, struct backend *be, enum trainer_memory memory,
                 struct error *error) {
    *trainer = (struct trainer){.config = config, .be = be};
    struct gpt *gpt = &trainer->gpt;
    if (gpt_open(gpt, config, precision, be, GPT_TRAINING, error)) return -1;
    trainer->state.scaler.loss_scale =
        precision->scale_loss ? (float)config->loss_scale.init_scale : 1;
    if (optimizer_open(&trainer->optimizer, gpt, config, error)) return -1;
    be->only_sizes = memory == TRAINER_PLANNED;
    plan(trainer);
    be->only_sizes = false;
    if (memory == TRAINER_PLANNED) return 0;
    /* gpt_allocate comes first, because it checks that the whole plan fits in memory. */
    if (gpt_allocate(gpt, error) || optimizer_allocate(&trainer->optimizer, error) ||
        backend_plan_end(be, error) || allocate_traffic(trainer, error))
        return -1;
    if (memory == TRAINER_INITIALIZED) trainer_initialize(trainer);
    trainer_restore_scaler(trainer);
    return 0;
}

void trainer_initialize(struct trainer *trainer) {
    gpt_initialize(&trainer->gpt, (uint64_t)trainer->config->seed);
}

void trainer_close(struct trainer *trainer) {
    struct backend *be = trainer->be;
    batches_close(&trainer->batches);
    if (trainer->results) backend_host_release(be, trainer->results);
    optimizer_close(&trainer->optimizer);
    if (trainer->gpt.be) gpt_close(&trainer->gpt);
    memset(trainer, 0, sizeof *trainer);
}

void trainer_restore_scaler(struct trainer *trainer) {
    backend_upload(trainer->be, trainer->optimizer.state, &trainer->state.scaler,
                   sizeof trainer->state.scaler);
}

/* Fails after too many steps in a row with infinite gradients or a non-finite loss. */
static int check_overflow(const struct trainer *trainer, int64_t at, struct error *error) {
    const struct step_state *s = &trainer->state.scaler;
    long long step = (long long)at;
    if (trainer->gpt.precision.scale_loss && s->at_floor >= SKIPS_AT_FLOOR_MAX)
        return fail(error,
                    "step %lld: gradients overflowed %d times in a row at loss_scale.min_scale = "
                    "%g\n"
                    "the model diverges or fp16 cannot hold its values: try \"precision\": "
                    "\"bf16\", a lower optimizer.lr, more warmup_steps, or grad_clip",
                    step, s->at_floor, trainer->config->loss_scale.min_scale);
    bool gradients = !trainer->gpt.precision.scale_loss && s->skipped_in_row >= SKIPS_UNSCALED_MAX;
    if (gradients || trainer->losses_lost >= SKIPS_UNSCALED_MAX)
        return fail(error,
                    "step %lld: %s not finite %d times in a row (loss %g)\n"
                    "the model has diverged: try a lower optimizer.lr, more warmup_steps, or "
                    "grad_clip, from an earlier checkpoint",
                    step, gradients ? "gradients were" : "the loss was",
                    gradients ? s->skipped_in_row : trainer->losses_lost,
                    isnan(s->loss) ? (double)NAN
                                   : (double)s->loss); /* NaN is printed without a sign */
    return 0;
}

/* Runs a part of a step as a graph. What changes from step to step came with the last batch, whose
 * address depends on its slot alone. With several ranks the part runs directly, since it includes
 * communication. */
static void start(struct trainer *trainer, enum part part, void (*work)(void *), void *argument) {
    struct backend *be = trainer->be;
    int which = (int)part * BACKEND_SLOTS + trainer->batches.slot;
    if (be->collectives->ranks->size > 1) work(argument);
    else backend_graph(be, which, trainer, work, argument);
}

int trainer_accumulate(struct trainer *trainer, const struct loader *loader, struct error *error) {
    const struct config *config = trainer->config;
    const struct training_state *state = &trainer->state;
    assert(trainer->unfinished < BACKEND_SLOTS);
    gpt_set_batch(&trainer->gpt, config->train.micro_batch_size, config->data.seq_len);
    struct step_inputs inputs = optimizer_inputs(config, state->step);
    inputs.loss_weight = batches_weight(config, loader, state->next_sample);
    int64_t micros = config->train.grad_accum_steps, batch = config->train.micro_batch_size;
    int64_t first = state->next_sample + trainer->be->collectives->ranks->rank * micros * batch;
    for (int64_t micro = 0; micro < micros; micro++) {
        if (batches_put(&trainer->batches, &trainer->gpt, loader, first + micro * batch, batch,
                        &inputs, error))
            return -1;
        start(trainer, micro == 0 ? PART_FIRST_MICRO : PART_FURTHER_MICRO, accumulate,
              &(struct micro){trainer, micro == 0, micro + 1 == micros});
    }
    return 0;
}

void trainer_update(struct trainer *trainer) {
    struct backend *be = trainer->be;
    struct training_state *state = &trainer->state;
    int slot = (trainer->first_queued + trainer->unfinished++) % BACKEND_SLOTS;
    backend_snapshot_guard(be);
    start(trainer, PART_UPDATE, end_step, trainer);
    double lr = schedule_lr(trainer->config, state->step++);
    state->tokens += batches_step_tokens(trainer->config);
    state->next_sample += batches_step_samples(trainer->config);
    trainer->queued[slot] = (struct queued_step){state->step, state->tokens, lr};
    backend_fetch(be, slot, &trainer->results[slot], trainer->optimizer.state,
                  sizeof trainer->results[slot]);
}

int trainer_begin_step(struct trainer *trainer, const struct loader *loader, struct error *error) {
    if (trainer_accumulate(trainer, loader, error)) return -1;
    trainer_update(trainer);
    return 0;
}

int trainer_end_step(struct trainer *trainer, struct step_report *report, struct error *error) {
    struct backend *be = trainer->be;
    int slot = trainer->first_queued;
    assert(trainer->unfinished > 0);
    backend_fetched(be, slot);
    trainer->first_queued = (slot + 1) % BACKEND_SLOTS;
    trainer->unfinished--;
    *report = (struct step_report){0};
    if (be->failure.text[0]) return fail(error, "%s", be->failure.text);
    const struct queued_step *queued = &trainer->queued[slot];
    const struct step_state *result = &trainer->results[slot];
    *report = (struct step_report){
        .step = queued->step,
        .tokens = queued->tokens,
        .loss = result->loss,
        .gradient_norm = result->gradient_norm,
        .loss_scale = trainer->state.scaler.loss_scale, /* as the previous step left it */
        .lr = queued->lr,
        .fp8 = trainer->gpt.precision.fp8,
        .fp8_not_finite = result->fp8_not_finite,
        .fp8_zero = result->fp8_zero,
        .skipped = result->found_inf,
    };
    if (trainer->gpt.prefers) report->preference = result->preference;
    trainer->state.scaler = *result;
    bool backs_off = result->found_inf && trainer->gpt.precision.scale_loss;
    if (isfinite(result->loss)) trainer->losses_lost = 0;
    else if (!backs_off) trainer->losses_lost++;
    return check_overflow(trainer, queued->step, error);
}

void trainer_wait_for_weights(struct trainer *trainer) {
    assert(trainer->unfinished == 0);
    exchange_wait_for_weights(&trainer->optimizer.exchange);
}

struct evaluator trainer_evaluator(struct trainer *trainer) {
    trainer_wait_for_weights(trainer);
    return (struct evaluator){
        .gpt = &trainer->gpt,
        .batches = &trainer->batches,
        .sum = &trainer->optimizer.state->loss,
        .pairs = &trainer->optimizer.state->preference,
        .results = {&trainer->results[0].loss, &trainer->results[1].loss},
        .stop = trainer->stop,
    };
}

int trainer_evaluate(struct trainer *trainer, double *loss, const struct loader *loader,
                     int64_t sequences, struct error *error) {
    struct evaluator evaluator = trainer_evaluator(trainer);
    const int status = evaluate(&evaluator, loss, loader, sequences, error);
    trainer->validated = evaluator.preference;
    return status;
}
