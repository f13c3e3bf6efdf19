#include "model/core/evaluate.h"

#include <inttypes.h>
#include <stdlib.h>

#include "data/util/min_max.h"
#include "kernels/collectives.h"
#include "model/core/forward.h"

/* Stores the mean loss over the unmasked targets of the current batch in evaluator->sum. */
static void batch_loss(struct evaluator *evaluator) {
    struct gpt *gpt = evaluator->gpt;
    struct backend *be = gpt->be;
    gpt_forward(gpt);
    gpt_loss(gpt, NULL, evaluator->pairs);
    OP(be, clear, .data = evaluator->sum, .bytes = sizeof(float));
    OP(be, loss_sum, .total = evaluator->sum, .losses = gpt->activations.losses.data,
       .count = gpt->shape.rows, .inputs = gpt->activations.inputs);
}

void evaluate_plan(struct gpt *gpt) {
    struct evaluator evaluator = {.gpt = gpt};
    gpt_set_batch(gpt, gpt->capacity.batch, gpt->capacity.sequence_length);
    batch_loss(&evaluator);
}

int64_t evaluate_sequences(const struct config *config, const struct loader *loader) {
    const int64_t most = config->eval.batches * config->train.micro_batch_size;
    return most < (int64_t)loader->sequence_count ? most : (int64_t)loader->sequence_count;
}

int evaluate_fail_masked(int64_t sequences, struct error *error) {
    return fail(error,
                "no token of the first %" PRId64 " sequences of the validation text counts in the "
                "loss: all are prompts\ntake more of them (eval.batches) or longer ones "
                "(data.seq_len)",
                sequences);
}

/* Mean loss of a batch, and its weight: the number of unmasked targets over the targets of a full
 * batch. */
struct batch_result {
    double loss, weight;
};

/* Queues a batch. The slot's result receives its loss. */
static int begin_batch(struct evaluator *evaluator, struct batch_result *result, int slot,
                       const struct loader *loader, int64_t first, int64_t count,
                       struct error *error) {
    struct gpt *gpt = evaluator->gpt;
    int64_t batch = gpt->capacity.batch, length = gpt->capacity.sequence_length;
    gpt_set_batch(gpt, batch, length);
    if (batches_put(evaluator->batches, gpt, loader, first, count, NULL, error)) return -1;
    batch_loss(evaluator);
    backend_fetch(gpt->be, slot, evaluator->results[slot], evaluator->sum, sizeof(float));
    result->weight = (double)evaluator->batches->counted / (double)(batch * length);
    return 0;
}

/* Runs this rank's batches, one of every ranks->size. The results of other ranks stay 0. */
static int run_batches(struct evaluator *evaluator, struct batch_result *results,
                       const struct loader *loader, int64_t sequences, struct error *error) {
    struct backend *be = evaluator->gpt->be;
    const struct ranks *ranks = be->collectives->ranks;
    int64_t batch = evaluator->gpt->capacity.batch, batches = (sequences + batch - 1) / batch;
    int64_t before = -1;
    int slot = 0;
    for (int64_t i = ranks->rank; i < batches || before >= 0; i += ranks->size) {
        if (evaluator->stop && *evaluator->stop) return RESULT_STOPPED;
        int64_t left = sequences - i * batch, count = MIN(left, batch);
        if (i < batches &&
            begin_batch(evaluator, &results[i], slot, loader, i * batch, count, error))
            return -1;
        slot = 1 - slot;
        if (before >= 0) {
            backend_fetched(be, slot);
            results[before].loss = (double)*evaluator->results[slot];
        }
        before = i < batches ? i : -1;
    }
    return be->failure.text[0] ? fail(error, "%s", be->failure.text) : 0;
}

/* Sums the figures of all pairs over the ranks. */
static int share_pairs(struct evaluator *evaluator, struct error *error) {
    struct backend *be = evaluator->gpt->be;
    const struct ranks *ranks = be->collectives->ranks;
    struct preference_sums *all = calloc((size_t)ranks->size, sizeof *all);
    float *to = (float *)&evaluator->preference;
    if (ranks_agree(ranks, all ? 0 : fail(error, "out of memory"), error)) {
        free(all);
        return -1;
    }
    backend_download(be, &evaluator->preference, evaluator->pairs, sizeof *all);
    ranks_gather(ranks, all, &evaluator->preference, sizeof *all);
    evaluator->preference = (struct preference_sums){0};
    for (int rank = 0; rank < ranks->size; rank++)
        for (size_t i = 0; i < sizeof *all / sizeof *to; i++) to[i] += ((float *)&all[rank])[i];
    free(all);
    return 0;
}

/* Gathers the results of all ranks. Batch i was run by rank i modulo the number of ranks. */
static int share_results(const struct ranks *ranks, struct batch_result *results, int64_t batches,
                         struct error *error) {
    size_t bytes = (size_t)batches * sizeof *results;
    if (ranks->size == 1) return 0;
    struct batch_result *all = malloc((size_t)ranks->size * bytes);
    if (ranks_agree(ranks, all ? 0 : fail(error, "out of memory"), error)) {
        free(all);
        return -1;
    }
    ranks_gather(ranks, all, results, bytes);
    for (int64_t i = 0; i < batches; i++) results[i] = all[i % ranks->size * batches + i];
    free(all);
    return 0;
}

static int mean_loss(double *loss, struct evaluator *evaluator, struct batch_result *results,
                     const struct loader *loader, int64_t sequences, struct error *error) {
    const struct ranks *ranks = evaluator->gpt->be->collectives->ranks;
    int64_t batch = evaluator->gpt->capacity.batch, batches = (sequences + batch - 1) / batch;
    double total = 0, weight = 0;
    if (evaluator->gpt->prefers)
        OP(evaluator->gpt->be, clear, .data = evaluator->pairs, .bytes = sizeof *evaluator->pairs);
    int status = run_batches(evaluator, results, loader, sequences, error);
    if (ranks_agree(ranks, status == RESULT_STOPPED ? 0 : status, error)) return -1;
    /* A signal may have reached some ranks only. */
    if (ranks_max(ranks, status == RESULT_STOPPED)) return RESULT_STOPPED;
    if (share_results(ranks, results, batches, error)) return -1;
    if (evaluator->gpt->prefers && share_pairs(evaluator, error)) return -1;
    for (int64_t i = 0; i < batches; i++) {
        total += results[i].weight * results[i].loss;
        weight += results[i].weight;
    }
    if (weight <= 0) return evaluate_fail_masked(sequences, error);
    *loss = total / weight;
    return 0;
}

int evaluate(struct evaluator *evaluator, double *loss, const struct loader *loader,
             int64_t sequences, struct error *error) {
    int64_t batch = evaluator->gpt->capacity.batch;
    struct batch_result *results =
        calloc((size_t)((sequences + batch - 1) / batch), sizeof *results);
    if (!results) return fail(error, "out of memory");
    int status = mean_loss(loss, evaluator, results, loader, sequences, error);
    free(results);
    return status;
}
