#include "model/task/reference.h"

#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/progress.h"
#include "kernels/collectives.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"
#include "model/task/preference.h"

bool reference_is_base(const struct config *config) {
    return config->adapter.type != CONFIG_ADAPTER_NONE &&
           (config->objective.reference == CONFIG_REFERENCE_BASE || !config->adapter.init_from[0]);
}

/* Stores the values of one batch. Returns RESULT_NONE if they are there already. answers: host
 * memory of the backend, [pairs of a batch]. */
static int run_batch(struct evaluator *evaluator, struct loader *loader, int64_t first,
                     int64_t count, bool base, struct preference_answers *answers,
                     struct error *error) {
    const struct batches *batches = evaluator->batches;
    if (batches_put(evaluator->batches, loader, first, count, NULL, error)) return -1;
    struct pass pass = batches_pass(batches, evaluator->model, PASS_EVALUATE);
    pass.sums = &evaluator->state->sums; /* not used */
    pass.without_adapters = base;
    bool known = true;
    for (uint64_t i = 0; i < batches->counted; i++)
        known = known && !isnan(batches->pairs[i].reference[PREFERENCE_REJECTED]);
    if (known) return RESULT_NONE;
    model_forward(&pass);
    objective_loss(&pass);
    backend_download(batches->be, answers, preference_answers(batches->memory, pass.rows),
                     (size_t)batches->counted * sizeof *answers);
    for (uint64_t i = 0; i < batches->counted; i++)
        for (int side = 0; side < PREFERENCE_SIDES; side++)
            loader->packing.reference[batches->pairs[i].piece + (uint32_t)side] =
                answers[i].p[side];
    return 0;
}

/* Runs this rank's batches, one of every ranks->size. */
static int run_batches(struct evaluator *evaluator, struct loader *loader, int64_t first,
                       int64_t count, bool base, struct error *error) {
    struct model *model = evaluator->model;
    const struct ranks *ranks = model->be->collectives->ranks;
    const int64_t batch = model->capacity.batch;
    const size_t bytes = (size_t)(model->capacity.rows / 2) * sizeof(struct preference_answers);
    struct preference_answers *answers = backend_host_allocate(model->be, bytes);
    int status = answers ? 0 : fail_memory(error, "the log-probabilities of a batch");
    bool begun = false; /* each process computes at least one batch */
    for (int64_t i = ranks->rank * batch; status == 0 && i < count; i += ranks->size * batch) {
        const bool late =
            begun && evaluator->deadline > 0 && progress_clock() >= evaluator->deadline;
        if (late || (evaluator->stop && *evaluator->stop)) status = RESULT_STOPPED;
        else
            status = run_batch(evaluator, loader, first + i, MIN(count - i, batch), base, answers,
                               error);
        begun = begun || status == 0;
        if (status == RESULT_NONE) status = 0;
        if (evaluator->progress) evaluator->progress(evaluator->context, i, count);
    }
    if (answers) backend_host_release(model->be, answers);
    if (status == 0 && model->be->failure.text[0])
        return fail(error, "%s", model->be->failure.text);
    return status;
}

/* Fills in the values that other ranks have. */
static int share(const struct ranks *ranks, float *values, size_t count, struct error *error) {
    if (ranks->size == 1) return 0;
    float *all = malloc((size_t)ranks->size * count * sizeof *all);
    int status = ranks_agree(
        ranks, all ? 0 : fail_memory(error, "the log-probabilities of all ranks"), error);
    if (status == 0) ranks_gather(ranks, all, values, count * sizeof *all);
    for (int rank = 0; status == 0 && rank < ranks->size; rank++)
        for (size_t i = 0; i < count; i++)
            if (isnan(values[i])) values[i] = all[(size_t)rank * count + i];
    free(all);
    return status;
}

int reference_compute(struct evaluator *evaluator, struct loader *loader, int64_t first,
                      int64_t count, bool base, struct error *error) {
    const struct ranks *ranks = evaluator->model->be->collectives->ranks;
    const size_t values = arrlenu(loader->packing.pieces);
    float **reference = &loader->packing.reference;
    const bool given = *reference;
    if (!given) *reference = malloc(values * sizeof **reference);
    if (ranks_agree(ranks, *reference ? 0 : fail_memory(error, "the reference's log-probabilities"),
                    error))
        return -1;
    for (size_t i = 0; !given && i < values; i++) (*reference)[i] = NAN;
    int status = run_batches(evaluator, loader, first, count, base, error);
    if (ranks_agree(ranks, status == RESULT_STOPPED ? 0 : status, error)) return -1;
    if (share(ranks, *reference, values, error)) return -1;
    return ranks_max(ranks, status == RESULT_STOPPED) ? RESULT_STOPPED : 0;
}
