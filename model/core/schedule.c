#include "model/core/schedule.h"

#include <math.h>

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
        double decay_steps = config->optimizer.decay_fraction * (double)config->train.steps;
        int64_t first = last - (int64_t)decay_steps;
        return lr + (min_lr - lr) * progress(step, first > peak ? first : peak, last);
    }
    }
    return lr;
}
