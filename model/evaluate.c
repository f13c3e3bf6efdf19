#include "model/evaluate.h"

#include <inttypes.h>

#include "model/forward.h"

/* The mean loss over the targets that count of the batch in place, in evaluator->sum. */
static void batch_loss(struct evaluator *evaluator, uint64_t counted) {
    struct gpt *gpt = evaluator->gpt;
    struct backend *be = gpt->be;
    gpt_forward(gpt);
    gpt_loss(gpt, NULL, 0);
    OP(be, clear, .data = evaluator->sum, .bytes = sizeof(float));
    OP(be, loss_sum, .total = evaluator->sum, .losses = gpt->activations.losses.data,
       .count = gpt->shape.rows, .weight = counted > 0 ? 1.0f / (float)counted : 0);
}

void evaluate_plan(struct gpt *gpt, int64_t batch, int64_t sequence_length) {
    struct evaluator evaluator = {.gpt = gpt};
    gpt_set_batch(gpt, batch, sequence_length);
    batch_loss(&evaluator, (uint64_t)gpt->shape.rows);
    gpt_set_batch(gpt, gpt->capacity.batch, gpt->capacity.sequence_length);
}

int evaluate_refuse(int64_t sequences, struct error *error) {
    return fail(error,
                "no token of the first %" PRId64 " sequences of the validation text counts in the "
                "loss: all are prompts\ntake more of them (eval.batches) or longer ones "
                "(data.seq_len)",
                sequences);
}

int evaluate(struct evaluator *evaluator, double *loss, const struct loader *loader,
             int64_t sequences, struct error *error) {
    struct gpt *gpt = evaluator->gpt;
    struct backend *be = gpt->be;
    int64_t batch = gpt->capacity.batch, length = gpt->capacity.sequence_length;
    int64_t batches = (sequences + batch - 1) / batch;
    double total = 0, weight = 0, batch_weight[BACKEND_SLOTS];
    for (int64_t i = 0; i <= batches; i++) {
        int slot = (int)(i % BACKEND_SLOTS), before = (int)((i + 1) % BACKEND_SLOTS);
        if (evaluator->stop && *evaluator->stop) return RESULT_STOPPED;
        if (i < batches) {
            int64_t left = sequences - i * batch, count = left < batch ? left : batch;
            gpt_set_batch(gpt, count, length);
            if (batches_put(evaluator->batches, gpt, loader, i * batch, error)) return -1;
            uint64_t counted = loader_counted(loader, (uint64_t)(i * batch), (uint64_t)count);
            batch_loss(evaluator, counted);
            backend_fetch(be, slot, evaluator->results[slot], evaluator->sum, sizeof(float));
            batch_weight[slot] = (double)counted / (double)(batch * length);
        }
        if (i == 0) continue;
        backend_fetched(be, before);
        total += batch_weight[before] * (double)*evaluator->results[before];
        weight += batch_weight[before];
    }
    if (be->failure.text[0]) return fail(error, "%s", be->failure.text);
    if (weight <= 0) return evaluate_refuse(sequences, error);
    *loss = total / weight;
    return 0;
}
