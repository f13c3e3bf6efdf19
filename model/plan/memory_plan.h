/* Memory plans of variants of a run, and the largest micro-batch that fits.
 *
 * A plan counts device memory. On a CPU that is all memory of the run, except the program itself
 * and the text that it reads (some 20 MiB). Planning allocates no memory for the model. `be` is an
 * open backend on which no operation is running. Matmuls of a plan are prepared and stay prepared
 * until it is closed. */
#pragma once

#include "data/util/error.h"
#include "model/core/model.h"

/* Makes the plan of a training run of config, the same as that of trainer_open. Fails with a
 * message if be does not support the precision of config. */
int memory_plan_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                   struct error *error);

/* Makes the plan without batches, workspace and library, which are 0. It is much faster, because
 * only a walk through the operations of a step measures the workspace. */
int memory_layout_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                     struct error *error);

/* Finds a micro-batch size whose plan is at most `memory` bytes, within the limits of the config;
 * config's own size is ignored. *batch is 0 if one sequence does not fit, MEMORY_NO_STATE if
 * weights, gradients and moments alone do not. One sequence more does not fit; several more may,
 * because logits are computed in chunks of equal size. */
enum { MEMORY_NO_STATE = -1 };
int memory_largest_batch(int64_t *batch, const struct config *config, struct backend *be,
                         size_t memory, struct error *error);

/* True if the limits of config keys allow micro-batches of that size. */
bool memory_batch_allowed(const struct config *config, int64_t batch);
