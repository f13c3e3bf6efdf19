/* Log-probabilities of the answers of pairs under the reference model of dpo, ipo and kto: the
 * model as it is before step 0, adapters included or without them (objective.reference). They are
 * computed once, so no second model is in memory. */
#pragma once

#include <stdint.h>

#include "data/corpus/loader.h"
#include "data/util/error.h"
#include "model/task/evaluate.h"

/* True if the reference is the model without its adapters, which any later step can compute too.
 * New adapters change nothing before step 0. */
bool reference_is_base(const struct config *config);

/* Computes loader->packing.reference of the pairs in the samples first .. first + count - 1, with
 * the evaluator's model and memory, and without its adapters if `base` is set; those of all others
 * are NAN. Values that are there already are kept. Batches are divided among ranks, and all ranks
 * get all values. The weights do not change. Returns RESULT_STOPPED once *evaluator->stop is
 * nonzero on any rank, or evaluator->deadline is over. */
int reference_compute(struct evaluator *evaluator, struct loader *loader, int64_t first,
                      int64_t count, bool base, struct error *error);
