/* Learning rate as a function of the step. */
#pragma once

#include "model/config/config.h"

/* Returns the rate for step 0, 1, ... of config->train.steps: a linear warmup over warmup_steps,
 * which reaches lr in step warmup_steps - 1, then by config->optimizer.schedule
 *
 *   constant  lr
 *   linear    a line from lr to min_lr
 *   cosine    half a cosine from lr to min_lr (Loshchilov, Hutter 2017)
 *   wsd       lr, then a line to min_lr over the last decay_fraction of all steps
 *             (warm-up, stable, decay: Hu et al. 2024)
 *
 * The decays reach min_lr in the last step. Skipped steps count. */
double schedule_lr(const struct config *config, int64_t step);
