#include "model/optimize/trainer.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "model/core/model_initialize.h"
#include "model/optimize/schedule.h"
#include "model/pass/backward.h"
#include "model/pass/forward.h"
#include "model/task/loglikelihood.h"
#include "model/task/objective.h"
#include "model/task/sample.h"

enum {
    SKIPS_AT_FLOOR_MAX = 8,  /* infinite gradients in a row at the smallest loss scale */
    SKIPS_UNSCALED_MAX = 10, /* the same without a loss scale */
};

/* Parts of a step, each with a graph of backend_graph for every slot of the batches and, since the
 * head reads the rows that count, for every number of units of them. */
enum part {
    PART_FIRST_MICRO,
    PART_FURTHER_MICRO = PART_FIRST_MICRO + BATCH_UNITS_RECORDED,
    PART_UPDATE = PART_FURTHER_MICRO + BATCH_UNITS_RECORDED,
    PARTS
};
_Static_assert(PARTS *BACKEND_SLOTS == BACKEND_GRAPHS, "a graph for each");

/* Returns the number of graphs that the steps of a trainer may record. */
static size_t graph_count(const struct trainer *trainer) {
    const int units = trainer->batches.view.counted_unit > 0 ? BATCH_UNITS_RECORDED : 1;
    if (trainer->be->collectives->ranks->size > 1) return 0; /* see start */
    return (size_t)(2 * units + 1) * BACKEND_SLOTS;
}

struct micro {
    struct trainer *trainer;
    bool first, last; /* first and last micro-batch of the step */
};

static void begin_step(struct trainer *trainer) {
    model_clear_gradients(&trainer->model);
    quantization_begin_step(&trainer->model.quantization);
    OP(trainer->be, clear, .data = &trainer->optimizer.state->loss, .bytes = sizeof(float));
    if (trainer->batches.objective->sums > 0)
        OP(trainer->be, clear, .data = &trainer->optimizer.state->sums,
           .bytes = sizeof(struct step_sums));
}

struct pass trainer_pass(struct trainer *trainer, bool first, bool last) {
    struct pass pass = batches_pass(&trainer->batches, &trainer->model, PASS_TRAIN);
    pass.first = first;
    pass.last = last;
    pass.loss_scale = &trainer->optimizer.state->loss_scale;
    pass.sums = &trainer->optimizer.state->sums;
    return pass;
}

/* Runs forward and backward on the current micro-batch. */
static void accumulate(void *argument) {
    const struct micro *micro = argument;
    struct trainer *trainer = micro->trainer;
    const struct pass pass = trainer_pass(trainer, micro->first, micro->last);
    if (micro->first) begin_step(trainer);
    model_forward(&pass);
    objective_loss(&pass);
    OP(trainer->be, loss_sum, .total = &trainer->optimizer.state->loss,
       .losses = trainer->model.activations.losses.data, .count = pass.rows,
       .inputs = pass.batch.inputs);
    model_backward(&pass);
}

/* Records are gathered before the weights are sent, so that they do not wait for the weights. */
static void end_step(void *argument) {
    struct trainer *trainer = argument;
    const struct step_inputs *inputs = trainer->batches.view.inputs;
    quantization_end_step(&trainer->model.quantization, trainer->optimizer.state, inputs);
    optimizer_step(&trainer->optimizer, inputs);
}

/* Runs every operation of a step with the plan table: the first micro-batch and, since its matmuls
 * differ, a further one. */
static void plan(struct trainer *trainer) {
    struct backend *be = trainer->be;
    const struct config *config = trainer->config;
    struct memory_plan *memory = &trainer->model.memory;
    batches_plan(&trainer->batches, &trainer->model, config);
    backend_plan_begin(be);
    accumulate(&(struct micro){trainer, true, true});
    if (trainer->config->train.grad_accum_steps > 1)
        accumulate(&(struct micro){trainer, false, true});
    end_step(trainer);
    if (config_texts(config) > 0) sample_plan(&trainer->model);
    if (config->eval.choices[0]) scorer_plan(&trainer->model);
    memory->workspace = backend_plan_pause(be);
    memory->batches = batches_bytes(&trainer->batches);
    if (config_texts(config) > 0) memory->batches += sampler_bytes(&trainer->model);
    if (config->eval.choices[0]) memory->batches += scorer_bytes(&trainer->model);
    memory->library = be->device.library_bytes + graph_count(trainer) * be->device.graph_bytes;
}

static int allocate_traffic(struct trainer *trainer, struct error *error) {
    struct backend *be = trainer->be;
    trainer->results = backend_host_allocate(be, BACKEND_SLOTS * sizeof *trainer->results);
    if (!trainer->results) return fail_memory(error, "the results of steps");
    return batches_open(&trainer->batches, &trainer->model, trainer->config, error);
}

int trainer_open(struct trainer *trainer, const struct config *config,
                 const struct precision *precision, struct backend *be, enum trainer_memory memory,
                 struct error *error) {
    *trainer = (struct trainer){.config = config, .be = be};
    struct model *model = &trainer->model;
    if (model_open(model, config, precision, be, PURPOSE_TRAINING, error)) return -1;
    trainer->state.scaler.loss_scale =
        precision->scale_loss ? (float)config->loss_scale.init_scale : 1;
    if (optimizer_open(&trainer->optimizer, model, config, error)) return -1;
    backend_plan_sizes(be, memory == TRAINER_PLANNED);
    plan(trainer);
    backend_plan_sizes(be, false);
    if (memory == TRAINER_PLANNED) return 0;
    /* model_allocate comes first, because it checks that the whole plan fits in memory. */
    if (model_allocate(model, error) || optimizer_allocate(&trainer->optimizer, error) ||
        backend_plan_end(be, error) || allocate_traffic(trainer, error))
        return -1;
    if (memory == TRAINER_INITIALIZED) trainer_initialize(trainer);
    trainer_restore_scaler(trainer);
    return 0;
}

void trainer_initialize(struct trainer *trainer) {
    model_initialize(&trainer->model, (uint64_t)trainer->config->seed);
}

void trainer_close(struct trainer *trainer) {
    struct backend *be = trainer->be;
    batches_close(&trainer->batches);
    if (trainer->results) backend_host_release(be, trainer->results);
    optimizer_close(&trainer->optimizer);
    if (trainer->model.be) model_close(&trainer->model);
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
    if (trainer->model.precision.scale_loss && s->at_floor >= SKIPS_AT_FLOOR_MAX)
        return fail(error,
                    "step %lld: gradients overflowed %d times in a row at loss_scale.min_scale = "
                    "%g\n"
                    "the model diverges or fp16 cannot hold its values: try \"precision\": "
                    "\"bf16\", a lower optimizer.lr, more warmup_steps, or grad_clip",
                    step, s->at_floor, trainer->config->loss_scale.min_scale);
    bool gradients =
        !trainer->model.precision.scale_loss && s->skipped_in_row >= SKIPS_UNSCALED_MAX;
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
 * address depends on its slot alone. With several ranks a part that communicates runs directly: a
 * graph cannot wait for the work of NCCL's stream. */
static void start(struct trainer *trainer, enum part part, bool communicates, void (*work)(void *),
                  void *argument) {
    struct backend *be = trainer->be;
    const struct batch_view *batch = &trainer->batches.view;
    int units = batch->counted > 0 ? (int)(batch->counted / batch->counted_unit) : 0;
    if (part == PART_UPDATE || be->device.host_memory) units = 0;
    int which = ((int)part + units) * BACKEND_SLOTS + trainer->batches.slot;
    if (communicates && be->collectives->ranks->size > 1) work(argument);
    else backend_graph(be, which, trainer, work, argument);
}

int trainer_accumulate(struct trainer *trainer, const struct loader *loader, struct error *error) {
    const struct config *config = trainer->config;
    const struct training_state *state = &trainer->state;
    assert(trainer->unfinished < BACKEND_SLOTS);
    struct step_inputs inputs = optimizer_inputs(config, state->step);
    inputs.loss_weight = batches_weight(config, loader, state->next_sample);
    int64_t micros = config->train.grad_accum_steps, batch = config->train.micro_batch_size;
    int64_t first = state->next_sample + trainer->be->collectives->ranks->rank * micros * batch;
    for (int64_t micro = 0; micro < micros; micro++) {
        if (batches_put(&trainer->batches, loader, first + micro * batch, batch, &inputs, error))
            return -1;
        /* The first waits for updated weights, and the last sends gradients. */
        const bool first_micro = micro == 0, last_micro = micro + 1 == micros;
        start(trainer, first_micro ? PART_FIRST_MICRO : PART_FURTHER_MICRO,
              first_micro || last_micro, accumulate,
              &(struct micro){trainer, first_micro, last_micro});
    }
    return 0;
}

void trainer_update(struct trainer *trainer) {
    struct backend *be = trainer->be;
    struct training_state *state = &trainer->state;
    int slot = (trainer->first_queued + trainer->unfinished++) % BACKEND_SLOTS;
    backend_snapshot_guard(be);
    start(trainer, PART_UPDATE, true, end_step, trainer);
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
        .quantizes = trainer->model.precision.quantizes,
        .quantized_not_finite = result->quantized_not_finite,
        .quantized_zero = result->quantized_zero,
        .skipped = result->found_inf,
        .sums = result->sums,
    };
    trainer->state.scaler = *result;
    bool backs_off = result->found_inf && trainer->model.precision.scale_loss;
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
        .model = &trainer->model,
        .batches = &trainer->batches,
        .state = trainer->optimizer.state,
        .results = {&trainer->results[0].loss, &trainer->results[1].loss},
        .stop = trainer->stop,
    };
}

int trainer_evaluate(struct trainer *trainer, double *loss, const struct loader *loader,
                     int64_t sequences, struct error *error) {
    struct evaluator evaluator = trainer_evaluator(trainer);
    const int status = evaluate(&evaluator, loss, loader, sequences, error);
    trainer->validated = evaluator.totals;
    return status;
}
