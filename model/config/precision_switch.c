#include "model/config/precision_switch.h"

#include "data/util/fraction.h"

int64_t precision_switch_step(const struct config *config) {
    const double at = config->precision_switch.at;
    const int64_t steps = config->train.steps;
    if (at == 0) return steps;
    int64_t step = at < 1 ? fraction_of(at, steps, FRACTION_UP) : (int64_t)at;
    return step < steps ? step : steps;
}

void precision_switch_apply(struct config *config) {
    config->precision = config->precision_switch.precision;
}
