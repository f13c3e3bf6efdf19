/* Double-buffered batches of a loader's data: one is filled on the host while operations use the
 * other. */
#pragma once

#include "data/corpus/loader.h"
#include "data/util/error.h"
#include "model/pass/pass.h"

struct batches {
    struct backend *be;
    const struct config *config; /* must outlive the batches */
    const struct objective *objective;
    struct batch_format format; /* batches have the model's capacity */
    int slot;                   /* slot of the next batch */
    struct batch slots[BACKEND_SLOTS];
    struct batch_view view;              /* the last batch, in backend memory */
    uint64_t counted;                    /* its targets that count in the loss, or its pairs */
    const struct preference_pair *pairs; /* with pairs: those of the last batch */
    void *memory;                        /* backend memory of passes, as the objective needs it */
    size_t memory_bytes;
};

/* Sets the format of the batches of a model, and an empty view for passes that are only planned.
 * Allocates nothing. */
void batches_plan(struct batches *batches, const struct model *model, const struct config *config);

/* Returns the bytes of backend memory that batches_open takes; on a CPU, host memory included. */
size_t batches_bytes(const struct batches *batches);

/* Does what batches_plan does, and allocates memory. */
int batches_open(struct batches *batches, const struct model *model, const struct config *config,
                 struct error *error);
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

/* Sends the samples first_sample .. first_sample + count - 1 with the inputs of the step. Without
 * inputs the loss is the mean over the batch. If a batch has more sequences, the others are copies
 * whose targets do not count. Does not wait for operations on the previous batch. Fails on bad
 * data. */
int batches_put(struct batches *batches, const struct loader *loader, int64_t first_sample,
                int64_t count, const struct step_inputs *inputs, struct error *error);

/* Returns a pass of the model over the last batch; PASS_TRAIN still lacks what the step decides. */
struct pass batches_pass(const struct batches *batches, struct model *model, enum pass_kind kind);
