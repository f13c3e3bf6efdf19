/* Log-probabilities of the answers of pairs under the reference model of dpo, ipo and kto: the
 * model as it is before step 0, or with adapters the model without them. They are computed once, so
 * no second model is in memory. */
#pragma once

#include <stdint.h>

#include "data/corpus/loader.h"
#include "data/util/error.h"
#include "model/core/evaluate.h"

/* True if losses of the objective read them. */
bool reference_is_read(const struct gpt *gpt);

/* Computes loader->pairs.reference of the pairs in the samples first .. first + count - 1, with the
 * evaluator's model and memory; those of all others are 0. Batches are divided among ranks, and all
 * ranks get all values. The weights do not change. Returns RESULT_STOPPED once *evaluator->stop is
 * nonzero on any rank. */
int reference_compute(struct evaluator *evaluator, struct loader *loader, int64_t first,
                      int64_t count, struct error *error);
