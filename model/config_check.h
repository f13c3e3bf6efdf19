/* What a config means beyond its single values: the preset, the computed defaults, and what must
 * hold between values. */
#ifndef MODEL_CONFIG_CHECK_H
#define MODEL_CONFIG_CHECK_H

#include "model/config_read.h"

/* Fills the keys that nobody gave and whose default depends on others. */
void config_resolve(struct config *config);

/* Checks what must hold between values; a message names where each of them comes from. */
int config_check(const struct config *config, const struct config_origins *origins, char *error);

#endif
