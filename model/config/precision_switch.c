#include "model/config/precision_switch.h"

#include <math.h>

int64_t precision_switch_step(const struct config *config) {
    double at = config->precision_switch.at, steps = (double)config->train.steps;
    if (at == 0) return config->train.steps;
    double step = at < 1 ? ceil(at * steps) : at;
    return step < steps ? (int64_t)step : config->train.steps;
}

void precision_switch_apply(struct config *config) {
    if (config->precision_switch.forward_only) config->autocast.lower16_forward = true;
    else config->precision = config->precision_switch.precision;
}
