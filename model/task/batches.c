#include "model/task/batches.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "model/task/objective.h"

static int64_t rows_of(const struct batches *batches) {
    return batches->format.batch * batches->format.length;
}

void batches_plan(struct batches *batches, const struct model *model, const struct config *config) {
    const struct model_shape *s = &model->capacity;
    const bool isolates = config->data.isolate;
    const struct objective *objective = objective_of(config);
    *batches = (struct batches){.be = model->be, .config = config, .objective = objective};
    struct batch_format *format = &batches->format;
    *format = (struct batch_format){
        .batch = s->batch, .length = s->sequence_length, .arrays = BATCH_INPUTS | BATCH_TARGETS};
    if (config->masked_share > 0) format->counted_unit = batch_counted_unit(model->be, s->rows);
    if (objective->bytes)
        objective->bytes(config, rows_of(batches), &format->extra, &batches->memory_bytes);
    if (isolates) format->arrays |= BATCH_FIRST_KEYS;
    if (isolates && s->positions == POSITIONS_LEARNED) format->arrays |= BATCH_POSITIONS;
    batches->view = (struct batch_view){
        .batch = s->batch, .length = s->sequence_length, .counted_unit = format->counted_unit};
}

size_t batches_bytes(const struct batches *batches) {
    struct arena measure = {0};
    for (int slot = 0; slot < BACKEND_SLOTS; slot++)
        arena_take(&measure, batch_bytes(batches->be, &batches->format));
    if (batches->memory_bytes > 0) arena_take(&measure, batches->memory_bytes);
    return measure.used;
}

int batches_open(struct batches *batches, const struct model *model, const struct config *config,
                 struct error *error) {
    batches_plan(batches, model, config);
    for (int slot = 0; slot < BACKEND_SLOTS; slot++)
        if (batch_open(&batches->slots[slot], batches->be, &batches->format, error)) return -1;
    const size_t bytes = batches->memory_bytes;
    if (bytes > 0) batches->memory = backend_allocate(batches->be, bytes);
    if (!bytes == !batches->memory) return 0;
    return fail_memory(error, "the loss");
}

void batches_close(struct batches *batches) {
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) batch_close(&batches->slots[slot]);
    if (batches->memory) backend_release(batches->be, batches->memory);
    memset(batches, 0, sizeof *batches);
}

static float weight_of(uint64_t counted) {
    return counted > 0 ? 1.0f / (float)counted : 0;
}

float batches_weight(const struct config *config, const struct loader *loader,
                     int64_t first_sample) {
    return weight_of(loader_target_count(loader, (uint64_t)first_sample,
                                         (uint64_t)batches_step_samples(config)));
}

/* Fills the rows after the first `given` ones with copies of them, whose targets do not count.
 * Copies leave the largest absolute values, and with them the scales of quantized tensors, as they
 * are. */
static void repeat_rows(const struct batch_view *host, int64_t given) {
    int32_t *const arrays[] = {host->tokens, host->first_keys, host->positions};
    const int64_t rows = host->batch * host->length;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        for (int64_t row = given; arrays[i] && row < rows; row++)
            arrays[i][row] = arrays[i][row % given];
    for (int64_t row = given; row < rows; row++) host->targets[row] = -1;
}

int batches_put(struct batches *batches, const struct loader *loader, int64_t first_sample,
                int64_t count, const struct step_inputs *inputs, struct error *error) {
    const int slot = batches->slot;
    struct batch *batch = &batches->slots[slot];
    const struct batch_view *host = &batch->host;
    assert(count >= 1 && count <= host->batch);
    backend_sent(batches->be, slot);
    struct loader_arrays arrays = {
        .tokens = host->tokens,
        .targets = host->targets,
        .first_keys = host->first_keys,
        .positions = host->positions,
    };
    const struct objective *objective = batches->objective;
    if (objective->read ? objective->read(batches->config, host, loader, &arrays,
                                          (uint64_t)first_sample, (int)count, error)
                        : loader_batch(loader, &arrays, (uint64_t)first_sample, (int)count, error))
        return -1;
    repeat_rows(host, count * host->length);
    batch_count(batch);
    batches->counted = arrays.counted;
    batches->pairs = arrays.pairs;
    *host->inputs =
        inputs ? *inputs : (struct step_inputs){.loss_weight = weight_of(arrays.counted)};
    host->inputs->first_row = first_sample * host->length;
    backend_send(batches->be, slot, batch->sent_memory, batch->host_memory, batch->bytes);
    batches->view = batch->sent;
    batches->slot = (slot + 1) % BACKEND_SLOTS;
    return 0;
}

struct pass batches_pass(const struct batches *batches, struct model *model, enum pass_kind kind) {
    return (struct pass){.model = model,
                         .kind = kind,
                         .batch = batches->view,
                         .rows = rows_of(batches),
                         .objective = batches->objective,
                         .config = batches->config,
                         .memory = batches->memory};
}
