/* Memory plans of variants of a run: what each would take, and the largest micro-batch that fits.
 * Memory is that of the device; on a CPU all of the run's, but for the program itself and the text
 * that it reads (some 20 MiB). Nothing of the models' memory is taken. `be` is an open backend
 * between two runs of operations; products that a plan walks through are prepared and stay so until
 * it is closed. */
#pragma once

#include "data/util/error.h"
#include "model/core/gpt.h"

/* The plan of a training run of config: that of trainer_open. Fails with a message where be cannot
 * compute in config's precision. */
int memory_plan_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                   struct error *error);

/* The same without batches, workspace and library, which are 0: much faster, because only a walk
 * knows the workspace. */
int memory_layout_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                     struct error *error);

/* The largest micro-batch, whatever config's, with which the plan is at most `memory` bytes and
 * that a config may have; 0 if that of one sequence is more, MEMORY_NO_STATE if weights,
 * gradients and moments alone are. There is no room for one sequence more; because logits are made
 * in chunks of equal size, there may be for several more. */
enum { MEMORY_NO_STATE = -1 };
int memory_largest_batch(int64_t *batch, const struct config *config, struct backend *be,
                         size_t memory, struct error *error);

/* Whether a run of config may have micro-batches of that size at all. */
bool memory_batch_allowed(const struct config *config, int64_t batch);
