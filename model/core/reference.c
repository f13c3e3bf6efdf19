#include "model/core/reference.h"

#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "kernels/collectives.h"
#include "model/core/forward.h"

bool reference_is_read(const struct gpt *gpt) {
    return gpt->prefers && gpt->rule.objective != PREFERENCE_ORPO &&
           gpt->rule.objective != PREFERENCE_SIMPO;
}

/* Stores the values of one batch. answers: host memory of the backend, [pairs of a batch]. */
static int run_batch(struct evaluator *evaluator, struct loader *loader, int64_t first,
                     int64_t count, struct preference_answers *answers, struct error *error) {
    struct gpt *gpt = evaluator->gpt;
    const struct batches *batches = evaluator->batches;
    gpt_set_batch(gpt, gpt->capacity.batch, gpt->capacity.sequence_length);
    if (batches_put(evaluator->batches, gpt, loader, first, count, NULL, error)) return -1;
    gpt_forward(gpt);
    gpt_loss(gpt, NULL, evaluator->pairs); /* the sums are not used */
    backend_download(gpt->be, answers, gpt->activations.preference.answers,
                     (size_t)batches->counted * sizeof *answers);
    for (uint64_t i = 0; i < batches->counted; i++)
        for (int side = 0; side < PREFERENCE_SIDES; side++)
            loader->pairs.reference[PREFERENCE_SIDES * batches->pairs[i].index + (uint64_t)side] =
                answers[i].p[side];
    return 0;
}

/* Runs this rank's batches, one of every ranks->size. */
static int run_batches(struct evaluator *evaluator, struct loader *loader, int64_t first,
                       int64_t count, struct error *error) {
    struct gpt *gpt = evaluator->gpt;
    const struct ranks *ranks = gpt->be->collectives->ranks;
    const int64_t batch = gpt->capacity.batch;
    const size_t bytes = (size_t)(gpt->capacity.rows / 2) * sizeof(struct preference_answers);
    struct preference_answers *answers = backend_host_allocate(gpt->be, bytes);
    int status = answers ? 0 : fail(error, "out of memory");
    for (int64_t i = ranks->rank * batch; status == 0 && i < count; i += ranks->size * batch) {
        if (evaluator->stop && *evaluator->stop) status = RESULT_STOPPED;
        else
            status = run_batch(evaluator, loader, first + i, MIN(count - i, batch), answers, error);
        if (evaluator->progress) evaluator->progress(evaluator->context, i, count);
    }
    if (answers) backend_host_release(gpt->be, answers);
    if (status == 0 && gpt->be->failure.text[0]) return fail(error, "%s", gpt->be->failure.text);
    return status;
}

/* Adds up the values of all ranks, of which one is not 0. */
static int share(const struct ranks *ranks, float *values, size_t count, struct error *error) {
    if (ranks->size == 1) return 0;
    float *all = malloc((size_t)ranks->size * count * sizeof *all);
    int status = ranks_agree(ranks, all ? 0 : fail(error, "out of memory"), error);
    if (status == 0) ranks_gather(ranks, all, values, count * sizeof *all);
    for (int rank = 0; status == 0 && rank < ranks->size; rank++)
        for (size_t i = 0; i < count; i++)
            if (rank != ranks->rank) values[i] += all[(size_t)rank * count + i];
    free(all);
    return status;
}

int reference_compute(struct evaluator *evaluator, struct loader *loader, int64_t first,
                      int64_t count, struct error *error) {
    struct gpt *gpt = evaluator->gpt;
    const struct ranks *ranks = gpt->be->collectives->ranks;
    const size_t values = PREFERENCE_SIDES * arrlenu(loader->pairs.list);
    const float scale = gpt->adapters.scale;
    free(loader->pairs.reference);
    loader->pairs.reference = calloc(values, sizeof *loader->pairs.reference);
    if (ranks_agree(ranks, loader->pairs.reference ? 0 : fail(error, "out of memory"), error))
        return -1;
    gpt->adapters.scale = 0; /* adapters then add nothing */
    int status = run_batches(evaluator, loader, first, count, error);
    gpt->adapters.scale = scale;
    if (ranks_agree(ranks, status == RESULT_STOPPED ? 0 : status, error)) return -1;
    if (ranks_max(ranks, status == RESULT_STOPPED)) return RESULT_STOPPED;
    return share(ranks, loader->pairs.reference, values, error);
}
