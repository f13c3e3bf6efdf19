/* Batches on their way to the backend: while one is used by operations, the next is filled. */
#pragma once

#include "data/util/error.h"
#include "data/corpus/loader.h"
#include "model/core/gpt.h"

struct batches {
    struct backend *be;
    int slot;                     /* that the next batch goes to */
    int32_t *host[BACKEND_SLOTS]; /* [2, B, T]: inputs, then targets */
    int32_t *sent[BACKEND_SLOTS]; /* the same in backend memory */
};

/* Bytes of backend memory that batches_open takes; on a CPU, host memory included. */
size_t batches_bytes(const struct backend *be, int64_t rows);

/* Memory for batches of at most `rows` tokens. */
int batches_open(struct batches *batches, struct backend *be, int64_t rows, struct error *error);
void batches_close(struct batches *batches);

/* The place of a micro-batch in the order of samples, and the tokens of a step: functions of the
 * config and the number of steps before it alone, so a run can stop and go on anywhere. The
 * micro-batches of a step are counted over all ranks: those of rank 0 come first. */
static inline int64_t batches_first_sample(const struct config *config, int64_t step,
                                           int64_t micro) {
    int64_t micros = config->rank_count * config->train.grad_accum_steps;
    return (step * micros + micro) * config->train.micro_batch_size;
}

static inline int64_t batches_step_tokens(const struct config *config) {
    return batches_first_sample(config, 1, 0) * config->data.seq_len;
}

/* Weight of each target's loss in a step: 1 / (its targets that count), of all micro-batches
 * together; 0 if there is none. */
float batches_weight(const struct config *config, const struct loader *loader, int64_t step);

/* Puts the samples from first_sample on in place as the model's batch, as many as its shape says,
 * without waiting for the operations that use the one before. Fails on bad data. */
int batches_put(struct batches *batches, struct gpt *gpt, const struct loader *loader,
                int64_t first_sample, struct error *error);
