/* Keys of the option table as the program asks for them: defaults, who gave a value, sizes,
 * words. */
#ifndef MODEL_CONFIG_CONFIG_KEYS_H
#define MODEL_CONFIG_CONFIG_KEYS_H

#include "model/architecture/parameters.h"
#include "model/config/config.h"

/* Fills config with the defaults. Its name is "", which config_load() would replace. */
void config_defaults(struct config *config);

/* Whether the file or a --set gave a value to a key ("model.n_layer") or to any key of a block
 * ("loss_scale"). A name that the table does not have is a programmer's mistake. */
bool config_given(const struct config *config, const char *name);

/* The sizes in config->model, without a batch. */
struct gpt_shape config_shape(const struct config *config);

/* Words as they stand in a config file. */
const char *config_precision_name(enum config_precision precision);
const char *config_schedule_name(enum config_schedule schedule);
const char *config_recompute_name(enum config_recompute recompute);
const char *config_tokenizer_name(enum config_tokenizer tokenizer);

#endif
