/* The change of precision in the course of a run (precision_switch in the config). A run trains to
 * that step, saves, and resumes in the other precision, in the same process. */
#pragma once

#include "model/config/config.h"

/* Returns the step after which the precision changes; train.steps without a change. */
int64_t precision_switch_step(const struct config *config);

/* Applies the settings that hold from that step on. */
void precision_switch_apply(struct config *config);
