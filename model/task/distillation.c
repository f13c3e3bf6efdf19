/* Distillation: the cross entropy of each token, mixed with the divergence from a teacher whose
 * largest logits are stored (data/corpus/teacher_logits.h). Validations have no teacher. */
#include <math.h>

#include "data/corpus/loader.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"

/* A batch's `extra`: K tokens of the teacher for each row, then their logits in fp16. */
static void bytes(const struct config *config, int64_t rows, size_t *extra, size_t *memory) {
    (void)memory;
    *extra = (size_t)(rows * config->distill_top) * (sizeof(int32_t) + sizeof(uint16_t));
}

static uint16_t *logits_in(const struct config *config, const struct batch_view *batch) {
    const int64_t rows = batch->batch * batch->length;
    return batch->extra ? (uint16_t *)((int32_t *)batch->extra + rows * config->distill_top) : NULL;
}

static int read(const struct config *config, const struct batch_view *host,
                const struct loader *loader, struct loader_arrays *arrays, uint64_t first_sample,
                int count, struct error *error) {
    if (loader->teacher) {
        arrays->teacher_tokens = host->extra;
        arrays->teacher_logits = logits_in(config, host);
    }
    return loader_batch(loader, arrays, first_sample, count, error);
}

/* Replaces the logits of a chunk by the gradient of their losses. */
static void distill(const struct pass *pass, const struct head_chunk *chunk) {
    const struct model *model = pass->model;
    const struct config *config = pass->config;
    const struct batch_view *batch = &pass->batch;
    const int64_t first = chunk->first, left = model->shape.rows - first, top = config->distill_top;
    const int32_t *tokens = batch->extra;
    struct tensor losses = tensor_range(&model->activations.losses, first, left);
    struct tensor teacher = {logits_in(config, batch), DTYPE_F16, 2, {model->shape.rows, top}};
    teacher = tensor_slice(&teacher, first, left);
    OP(model->be, distillation, .losses = losses.data, .logits = &chunk->logits,
       .targets = batch->targets ? batch->targets + first : NULL,
       .teacher_tokens = tokens ? tokens + first * top : NULL, .teacher_logits = &teacher,
       .alpha = (float)config->distill.alpha, .temperature = (float)config->distill.temperature,
       .loss_scale = pass->loss_scale, .inputs = batch->inputs, .places = chunk->places,
       .softcap = (float)model->shape.logit_softcap, .vocab_size = model->shape.vocab_size,
       .label = chunk->label);
}

static void loss(const struct pass *pass) {
    const bool trains = pass->kind == PASS_TRAIN;
    model_head(pass, &(struct head_args){.has_gradients = trains,
                                         .losses = pass->model->activations.losses.data,
                                         .op = trains ? distill : NULL});
}

/* The divergence is some ln V, times the square of the temperature. */
static double limit(const struct config *config) {
    const double heat = fmax(1, config->distill.temperature);
    return 10 * log((double)config->model.vocab_size) * heat * heat;
}

const struct objective objective_distillation = {
    .bytes = bytes, .read = read, .loss = loss, .limit = limit};
