/* Opening a trainer, with advice where there is too little memory. */
#pragma once

#include "data/util/error.h"
#include "model/core/trainer.h"

/* trainer_open with memory. Where there is not enough, nothing stays open and the message names the
 * options with which the run fits. */
int setup_trainer(struct trainer *trainer, const struct config *config,
                  const struct precision *precision, struct backend *be, struct error *error);
