#include "model/plan/memory_plan.h"

#include <string.h>

#include "model/config/config_keys.h"
#include "model/optimize/snapshot.h"
#include "model/optimize/trainer.h"

int memory_plan_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                   struct error *error) {
    struct precision precision;
    struct trainer trainer;
    if (precision_resolve(&precision, NULL, config, be, error)) return -1;
    size_t workspace = backend_plan_from(be, 0); /* it only grows, and this plan has its own size */
    int status = trainer_open(&trainer, config, &precision, be, TRAINER_PLANNED, error);
    if (status == 0) snapshot_plan(&trainer);
    *plan = trainer.model.memory;
    trainer_close(&trainer);
    backend_plan_from(be, workspace);
    return status;
}

int memory_layout_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                     struct error *error) {
    struct precision precision;
    struct model model;
    if (precision_resolve(&precision, NULL, config, be, error)) return -1;
    struct optimizer optimizer = {0};
    int status = model_open(&model, config, &precision, be, PURPOSE_TRAINING, error);
    if (status == 0) status = optimizer_open(&optimizer, &model, config, error);
    *plan = model.memory;
    optimizer_close(&optimizer);
    model_close(&model);
    return status;
}

/* ---- the largest micro-batch */

bool memory_batch_allowed(const struct config *config, int64_t batch) {
    return batch >= 1 && (double)batch <= config_option_of("train.micro_batch_size")->maximum &&
           batch <= CONFIG_MICRO_TOKENS_MAX / config->data.seq_len;
}

/* Search over micro-batch sizes. */
struct search {
    struct config config;
    struct backend *be;
    size_t memory;
    bool walk;         /* use full plans; otherwise layouts, which are much faster */
    size_t walk_bytes; /* estimate of what a full plan adds to a layout */
    struct error *error;
    int failed;
};

static bool fits(struct search *search, int64_t batch) {
    struct memory_plan plan;
    if (search->failed || !memory_batch_allowed(&search->config, batch)) return false;
    search->config.train.micro_batch_size = batch;
    search->failed = (search->walk ? memory_plan_of : memory_layout_of)(&plan, &search->config,
                                                                        search->be, search->error);
    if (search->failed) return false;
    return memory_total(&plan) + (search->walk ? 0 : search->walk_bytes) <= search->memory;
}

/* Returns the largest micro-batch that fits, or 0. From the guess, growing strides find an interval
 * that contains it; bisection finds it there. */
static int64_t largest(struct search *search, int64_t guess) {
    int64_t low = 0, high = guess, stride = 1;
    if (guess == 0 || fits(search, guess)) {
        for (low = guess; fits(search, low + stride); stride *= 2) low += stride;
        high = low + stride;
    } else {
        for (; high - stride > 0 && !fits(search, high - stride); stride *= 2) high -= stride;
        low = high - stride > 0 ? high - stride : 0;
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (fits(search, middle)) low = middle;
        else high = middle;
    }
    return low;
}

int memory_largest_batch(int64_t *batch, const struct config *config, struct backend *be,
                         size_t memory, struct error *error) {
    struct search search = {.config = *config, .be = be, .memory = memory, .error = error};
    struct memory_plan layout, plan;
    search.config.train.micro_batch_size = 1;
    if (memory_layout_of(&layout, &search.config, be, error)) return -1;
    *batch = MEMORY_NO_STATE;
    if (memory_state_bytes(&layout) > memory) return 0;
    /* A full plan prepares matmuls and is slow, a layout is fast. Layouts alone give an upper
     * bound. What a full plan adds to the layout there then gives a close guess for the final
     * search. */
    *batch = largest(&search, 0);
    if (search.failed || *batch == 0) return search.failed;
    search.config.train.micro_batch_size = *batch;
    if (memory_layout_of(&layout, &search.config, be, error) ||
        memory_plan_of(&plan, &search.config, be, error))
        return -1;
    if (memory_total(&plan) <= memory) return 0;
    search.walk_bytes = memory_total(&plan) - memory_total(&layout);
    *batch = largest(&search, 0);
    search.walk = true;
    *batch = largest(&search, *batch);
    return search.failed;
}
