/* What a config takes from the model that its run starts from. */
#ifndef MODEL_CONFIG_INIT_H
#define MODEL_CONFIG_INIT_H

#include "model/config.h"

/* Fills the sizes, and the tokenizer, that neither a key nor a preset gave from
 * model.init_from/config.json, if there is one. Fails when it is no config.json of a GPT-2. */
int config_init(struct config *config, char *error);

#endif
