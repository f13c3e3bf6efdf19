#include "model/cli/divergence.h"

#include <math.h>

#include "model/task/objective.h"

static double limit_of(const struct config *config, double first) {
    const struct objective *objective = objective_of(config);
    const double chance = log((double)config->model.vocab_size);
    return objective->limit ? objective->limit(config) : fmin(2 * chance, fmax(chance, first) + 1);
}

bool divergence_watch(struct divergence *divergence, const struct config *config, double loss) {
    if (divergence->first == 0) divergence->first = loss;
    divergence->limit = limit_of(config, divergence->first);
    divergence->steps = isfinite(loss) && loss > divergence->limit ? divergence->steps + 1 : 0;
    return divergence->steps == DIVERGENCE_STEPS;
}
