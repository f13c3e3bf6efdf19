/* Double-buffered batches: one is filled on the host while operations use the other. */
#pragma once

#include "data/util/error.h"
#include "data/corpus/loader.h"
#include "model/core/gpt.h"

/* A batch as it is sent, with the inputs of its step. */
struct batch {
    struct step_inputs inputs;
    int32_t tokens[]; /* [2, B, T]: tokens, then targets; with data.isolate also first keys, and
                       * positions if these are learned; then a struct preference_batch if the
                       * model is trained on pairs, or for distillation a teacher's tokens
                       * [B, T, K] and their logits in fp16 */
};

struct batches {
    struct backend *be;
    int slot;                          /* slot of the next batch */
    struct batch *host[BACKEND_SLOTS]; /* filled by the host */
    struct batch *sent[BACKEND_SLOTS]; /* the same in backend memory */
    uint64_t counted; /* targets of the last batch that count in the loss, or pairs */
    /* For models that are trained on pairs: those of the last batch, [rows / 2], and backend memory
     * for what activations.preference points to. */
    struct loader_pair *pairs;
    void *preference;
};

/* Bytes of backend memory that batches_open takes; on a CPU, host memory included. */
size_t batches_bytes(const struct gpt *gpt);

/* Allocates memory for batches of the model's capacity. */
int batches_open(struct batches *batches, const struct gpt *gpt, struct error *error);
void batches_close(struct batches *batches);

/* Returns the number of samples of a step. They are those of its micro-batches, which are numbered
 * over all ranks, rank 0 first. */
static inline int64_t batches_step_samples(const struct config *config) {
    return config->rank_count * config->train.grad_accum_steps * config->train.micro_batch_size;
}

static inline int64_t batches_step_tokens(const struct config *config) {
    return batches_step_samples(config) * config->data.seq_len;
}

/* Returns the weight of each target's loss in the step that begins with this sample: 1 / (unmasked
 * targets of all micro-batches), or 1 / their pairs; 0 if there are none. */
float batches_weight(const struct config *config, const struct loader *loader,
                     int64_t first_sample);

/* Sends the samples first_sample .. first_sample + count - 1 with the inputs of the step, and makes
 * them the model's current batch. Without inputs the loss is the mean over the batch. If the
 * model's shape has more sequences, the others are copies whose targets do not count. Does not wait
 * for operations on the previous batch. Fails on bad data. */
int batches_put(struct batches *batches, struct gpt *gpt, const struct loader *loader,
                int64_t first_sample, int64_t count, const struct step_inputs *inputs,
                struct error *error);
