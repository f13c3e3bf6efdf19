#include "model/optimize/schedule.h"

#include <math.h>

#include "data/util/fraction.h"
#include "data/util/min_max.h"

/* Returns the position of step between first and last, in 0..1. */
static double progress(int64_t step, int64_t first, int64_t last) {
    if (step <= first) return 0;
    if (step >= last) return 1;
    return (double)(step - first) / (double)(last - first);
}

double schedule_lr(const struct config *config, int64_t step) {
    double lr = config->optimizer.lr, min_lr = config->optimizer.min_lr;
    int64_t warmup = config->optimizer.warmup_steps, last = config->train.steps - 1;
    if (step < warmup) return lr * (double)(step + 1) / (double)warmup;
    int64_t peak = warmup > 0 ? warmup - 1 : 0; /* the step that has lr in full */
    switch (config->optimizer.schedule) {
    case CONFIG_SCHEDULE_CONSTANT: return lr;
    case CONFIG_SCHEDULE_LINEAR: return lr + (min_lr - lr) * progress(step, peak, last);
    case CONFIG_SCHEDULE_COSINE:
        return min_lr +
               (lr - min_lr) * 0.5 * (1 + cos(3.141592653589793 * progress(step, peak, last)));
    case CONFIG_SCHEDULE_WSD: {
        int64_t first = last - fraction_of(config->optimizer.decay_fraction, config->train.steps,
                                           FRACTION_DOWN);
        return lr + (min_lr - lr) * progress(step, MAX(first, peak), last);
    }
    }
    return lr;
}
