/* Losses of pairs of answers (kernels/preference_loss.h): dpo, ipo, orpo, kto and simpo. */
#pragma once

#include "kernels/preference_args.h"

/* Returns the sums over answers, [rows / 2] of the batch's pairs, in the memory of a pass. */
struct preference_answers *preference_answers(void *memory, int64_t rows);
