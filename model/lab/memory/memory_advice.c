#include "model/lab/memory/memory_advice.h"

#include <string.h>

#include "model/lab/memory/memory_plan.h"

struct search {
    struct memory_advice *advice;
    struct backend *be;
    size_t memory;
    struct error *error;
    struct config least; /* of all layouts the smallest */
    size_t least_bytes;
};

/* Most sets do not fit by their layout alone, which is known without a walk. */
static int try_config(struct search *search, const struct config *config) {
    struct memory_plan *plan = &search->advice->plan;
    if (memory_layout_of(plan, config, search->be, search->error)) return -1;
    if (plan->total < search->least_bytes) {
        search->least = *config;
        search->least_bytes = plan->total;
    }
    if (plan->total > search->memory) return RESULT_NONE;
    if (memory_plan_of(plan, config, search->be, search->error)) return -1;
    if (plan->total > search->memory) return RESULT_NONE;
    search->advice->config = *config;
    return 0;
}

/* All sets of the first `count` options on top of config, in order of cost. */
static int try_sets(struct search *search, const struct config *config, int count) {
    if (count == 0) return try_config(search, config);
    enum memory_option costliest = (enum memory_option)(count - 1);
    bool *chosen = &search->advice->chosen[costliest];
    struct config other = *config;
    *chosen = false;
    int status = try_sets(search, &other, count - 1);
    while (status == RESULT_NONE && memory_apply(&other, costliest, search->be)) {
        *chosen = true;
        status = try_sets(search, &other, count - 1);
    }
    return status;
}

int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, struct error *error) {
    struct search search = {
        .advice = advice, .be = be, .memory = memory, .error = error, .least_bytes = SIZE_MAX};
    int status = try_sets(&search, config, MEMORY_OPTIONS);
    if (status != RESULT_NONE) return status;
    advice->config = search.least;
    return memory_plan_of(&advice->plan, &advice->config, be, error) ? -1 : RESULT_NONE;
}

bool memory_advice_changes(const struct memory_advice *advice) {
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++)
        if (advice->chosen[i]) return true;
    return false;
}

enum memory_bits memory_advice_bits(const struct memory_advice *advice) {
    enum memory_bits bits = MEMORY_SAME_BITS;
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++)
        if (advice->chosen[i] && memory_option_bits(i) > bits) bits = memory_option_bits(i);
    return bits;
}
