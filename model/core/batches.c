#include "model/core/batches.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool has_positions(const struct gpt *gpt) {
    return gpt->isolates && gpt->shape.positions == POSITIONS_LEARNED;
}

static int64_t array_count(const struct gpt *gpt) {
    return 2 + gpt->isolates + has_positions(gpt);
}

/* Bytes of a batch: its arrays, and behind them either pairs or a teacher's tokens and logits. */
static size_t slot_bytes(const struct gpt *gpt, int64_t rows) {
    size_t bytes = sizeof(struct batch) + (size_t)(array_count(gpt) * rows) * sizeof(int32_t);
    if (gpt->prefers)
        bytes +=
            sizeof(struct preference_batch) + (size_t)(rows / 2) * sizeof(struct preference_pair);
    return bytes + (size_t)(rows * gpt->distill.top) * (sizeof(int32_t) + sizeof(uint16_t));
}

/* Returns the teacher's tokens [rows, K] in a batch; their logits follow. */
static int32_t *teacher_in(const struct gpt *gpt, struct batch *batch, int64_t rows) {
    return batch->tokens + array_count(gpt) * rows;
}

/* Bytes for the losses of pairs: two values for each row, and the answers of each pair. */
static size_t preference_bytes(const struct gpt *gpt) {
    const size_t rows = (size_t)gpt->capacity.rows;
    return 2 * rows * sizeof(float) + rows / 2 * sizeof(struct preference_answers);
}

size_t batches_bytes(const struct gpt *gpt) {
    struct arena measure = {0};
    for (int i = 0; i < (gpt->be->device.host_memory ? 2 : 1) * BACKEND_SLOTS; i++)
        arena_take(&measure, slot_bytes(gpt, gpt->capacity.rows));
    if (gpt->prefers) arena_take(&measure, preference_bytes(gpt));
    return measure.used;
}

int batches_open(struct batches *batches, const struct gpt *gpt, struct error *error) {
    struct backend *be = gpt->be;
    size_t bytes = slot_bytes(gpt, gpt->capacity.rows);
    bool complete = true;
    *batches = (struct batches){.be = be};
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        batches->host[slot] = backend_host_allocate(be, bytes);
        batches->sent[slot] = backend_allocate(be, bytes);
        complete = complete && batches->host[slot] && batches->sent[slot];
    }
    if (gpt->prefers) {
        batches->pairs = malloc((size_t)(gpt->capacity.rows / 2) * sizeof *batches->pairs);
        batches->preference = backend_allocate(be, preference_bytes(gpt));
        complete = complete && batches->pairs && batches->preference;
    }
    return complete ? 0 : fail(error, "out of memory for batches of %zu bytes", bytes);
}

void batches_close(struct batches *batches) {
    struct backend *be = batches->be;
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        if (batches->host[slot]) backend_host_release(be, batches->host[slot]);
        if (batches->sent[slot]) backend_release(be, batches->sent[slot]);
    }
    if (batches->preference) backend_release(be, batches->preference);
    free(batches->pairs);
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

/* Fills the rows after the first `count` sequences of a batch with copies of them, whose targets do
 * not count. Copies leave the largest absolute values, and with them fp8 scales, as they are. */
static void repeat_samples(const struct gpt *gpt, int32_t *arrays, int64_t count) {
    const int64_t rows = gpt->shape.rows, given = count * gpt->shape.sequence_length;
    for (int64_t array = 0; array < array_count(gpt); array++)
        for (int64_t row = given; row < rows; row++)
            arrays[array * rows + row] = array == 1 ? -1 : arrays[array * rows + row % given];
}

/* Writes the pairs of the batch behind its arrays, and points the activations to them. */
static void put_pairs(const struct batches *batches, struct gpt *gpt, struct batch *host,
                      struct batch *sent) {
    const int64_t arrays = array_count(gpt) * gpt->shape.rows;
    struct preference_batch *to = (struct preference_batch *)(host->tokens + arrays);
    struct preference_memory *memory = &gpt->activations.preference;
    to->count = (int32_t)batches->counted;
    for (uint64_t i = 0; i < batches->counted; i++) {
        const struct loader_pair *from = &batches->pairs[i];
        struct preference_pair *pair = &to->pairs[i];
        for (int side = 0; side < PREFERENCE_SIDES; side++) {
            pair->begin[side] = from->begin[side];
            pair->answer[side] = from->answer[side];
            pair->end[side] = from->end[side];
            pair->reference[side] = from->reference[side];
        }
        pair->undesirable = from->undesirable;
    }
    memory->batch = (const struct preference_batch *)(sent->tokens + arrays);
    memory->weights = batches->preference;
    memory->unused_losses = memory->weights + gpt->capacity.rows;
    memory->answers = (struct preference_answers *)(memory->unused_losses + gpt->capacity.rows);
}

int batches_put(struct batches *batches, struct gpt *gpt, const struct loader *loader,
                int64_t first_sample, int64_t count, const struct step_inputs *inputs,
                struct error *error) {
    struct backend *be = batches->be;
    int slot = batches->slot;
    int64_t rows = gpt->shape.rows;
    struct batch *host = batches->host[slot], *sent = batches->sent[slot];
    assert(rows <= gpt->capacity.rows && count >= 1 && count <= gpt->shape.batch);
    backend_sent(be, slot);
    struct loader_arrays arrays = {
        .tokens = host->tokens,
        .targets = host->tokens + rows,
        .first_keys = gpt->isolates ? host->tokens + 2 * rows : NULL,
        .positions = has_positions(gpt) ? host->tokens + 3 * rows : NULL,
        .pairs = batches->pairs,
    };
    if (loader->teacher && gpt->distill.top > 0) { /* validation has none */
        arrays.teacher_tokens = teacher_in(gpt, host, rows);
        arrays.teacher_logits = (uint16_t *)(arrays.teacher_tokens + rows * gpt->distill.top);
    }
    if (loader_batch(loader, &arrays, (uint64_t)first_sample, (int)count, error)) return -1;
    repeat_samples(gpt, host->tokens, count);
    batches->counted = arrays.counted;
    host->inputs =
        inputs ? *inputs : (struct step_inputs){.loss_weight = weight_of(arrays.counted)};
    host->inputs.first_row = first_sample * gpt->shape.sequence_length;
    if (gpt->prefers) put_pairs(batches, gpt, host, sent);
    backend_send(be, slot, sent, host, slot_bytes(gpt, rows));
    gpt->activations.inputs = &sent->inputs;
    gpt->activations.tokens = sent->tokens;
    gpt->activations.targets = sent->tokens + rows;
    gpt->activations.first_keys = gpt->isolates ? sent->tokens + 2 * rows : NULL;
    gpt->activations.positions = has_positions(gpt) ? sent->tokens + 3 * rows : NULL;
    if (gpt->distill.top > 0) {
        gpt->activations.teacher_tokens = teacher_in(gpt, sent, rows);
        gpt->activations.teacher_logits = gpt->activations.teacher_tokens + rows * gpt->distill.top;
    }
    batches->slot = (slot + 1) % BACKEND_SLOTS;
    return 0;
}
