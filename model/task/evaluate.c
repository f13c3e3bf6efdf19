#include "model/task/evaluate.h"

#include <inttypes.h>
#include <stdlib.h>

#include "data/util/min_max.h"
#include "data/util/printed.h"
#include "kernels/collectives.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"

/* Stores the mean loss over the unmasked targets of the current batch in state->loss. */
static void batch_loss(struct evaluator *evaluator) {
    struct backend *be = evaluator->model->be;
    struct pass pass = batches_pass(evaluator->batches, evaluator->model, PASS_EVALUATE);
    pass.sums = &evaluator->state->sums;
    model_forward(&pass);
    objective_loss(&pass);
    OP(be, clear, .data = &evaluator->state->loss, .bytes = sizeof(float));
    OP(be, loss_sum, .total = &evaluator->state->loss,
       .losses = evaluator->model->activations.losses.data, .count = pass.rows,
       .inputs = pass.batch.inputs);
}

void evaluate_plan(struct model *model, const struct config *config) {
    struct batches batches;
    struct step_state state; /* its addresses are planned with, nothing else */
    batches_plan(&batches, model, config);
    batch_loss(&(struct evaluator){.model = model, .batches = &batches, .state = &state});
}

int64_t evaluate_sequences(const struct config *config, const struct loader *loader) {
    const int64_t most = config->eval.batches * EVALUATE_BATCH;
    return most < (int64_t)loader->sequence_count ? most : (int64_t)loader->sequence_count;
}

int evaluate_fail_masked(int64_t sequences, struct error *error) {
    return fail(error,
                "no token of the first %" PRId64 " sequence%s of the validation text counts in the "
                "loss: all are prompts\ntake more of them (eval.batches) or longer ones "
                "(data.seq_len)",
                sequences, PLURAL(sequences));
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
    struct model *model = evaluator->model;
    int64_t batch = model->capacity.batch, length = model->capacity.sequence_length;
    if (batches_put(evaluator->batches, loader, first, count, NULL, error)) return -1;
    batch_loss(evaluator);
    backend_fetch(model->be, slot, evaluator->results[slot], &evaluator->state->loss,
                  sizeof(float));
    result->weight = (double)evaluator->batches->counted / (double)(batch * length);
    return 0;
}

/* Runs this rank's batches, one of every ranks->size. The results of other ranks stay 0. */
static int run_batches(struct evaluator *evaluator, struct batch_result *results,
                       const struct loader *loader, int64_t sequences, struct error *error) {
    struct backend *be = evaluator->model->be;
    const struct ranks *ranks = be->collectives->ranks;
    int64_t batch = evaluator->model->capacity.batch, batches = (sequences + batch - 1) / batch;
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

/* Adds up the objective's sums of all ranks. */
static void share_sums(struct evaluator *evaluator) {
    const struct ranks *ranks = evaluator->model->be->collectives->ranks;
    struct step_sums all[RANKS_MAX], *total = &evaluator->totals;
    backend_download(evaluator->model->be, total, &evaluator->state->sums, sizeof *total);
    ranks_gather(ranks, all, total, sizeof *total);
    *total = (struct step_sums){{0}};
    for (int rank = 0; rank < ranks->size; rank++)
        for (int i = 0; i < evaluator->batches->objective->sums; i++)
            total->values[i] += all[rank].values[i];
}

/* Gathers the results of all ranks. Batch i was run by rank i modulo the number of ranks. */
static int share_results(const struct ranks *ranks, struct batch_result *results, int64_t batches,
                         struct error *error) {
    size_t bytes = (size_t)batches * sizeof *results;
    if (ranks->size == 1) return 0;
    struct batch_result *all = malloc((size_t)ranks->size * bytes);
    if (ranks_agree(ranks, all ? 0 : fail_memory(error, "the losses of all ranks"), error)) {
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
    const struct ranks *ranks = evaluator->model->be->collectives->ranks;
    int64_t batch = evaluator->model->capacity.batch, batches = (sequences + batch - 1) / batch;
    double total = 0, weight = 0;
    const bool has_sums = evaluator->batches->objective->sums > 0;
    if (has_sums)
        OP(evaluator->model->be, clear, .data = &evaluator->state->sums,
           .bytes = sizeof(struct step_sums));
    int status = run_batches(evaluator, results, loader, sequences, error);
    if (ranks_agree(ranks, status == RESULT_STOPPED ? 0 : status, error)) return -1;
    /* A signal may have reached some ranks only. */
    if (ranks_max(ranks, status == RESULT_STOPPED)) return RESULT_STOPPED;
    if (share_results(ranks, results, batches, error)) return -1;
    if (has_sums) share_sums(evaluator);
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
    int64_t batch = evaluator->model->capacity.batch;
    struct batch_result *results =
        calloc((size_t)((sequences + batch - 1) / batch), sizeof *results);
    if (!results) return fail_memory(error, "the losses of batches");
    int status = mean_loss(loss, evaluator, results, loader, sequences, error);
    free(results);
    return status;
}
