/* Settings without effect. */
#pragma once

#include <stddef.h>

#include "model/config/config.h"

/* Writes a line for each key that was changed, but that the run does not read because of another
 * key's value. Empty if there is none. precision_warnings (model/core/precision.h) has those of
 * the precision in use. */
void config_unused(const struct config *config, char *text, size_t size);
