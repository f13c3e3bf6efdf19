/* trainer_open with advice if memory is short. */
#pragma once

#include "data/util/error.h"
#include "model/core/trainer.h"

/* Opens a trainer and allocates its memory. If memory is short, nothing stays open and the message
 * names the options with which the run fits. */
int setup_trainer(struct trainer *trainer, const struct config *config,
                  const struct precision *precision, struct backend *be, struct error *error);
