/* The sizes of the model that a config asks for. */
#ifndef MODEL_CONFIG_CONFIG_SHAPE_H
#define MODEL_CONFIG_CONFIG_SHAPE_H

#include "model/architecture/parameters.h"
#include "model/config/config.h"

/* The sizes in config->model, without a batch. */
struct gpt_shape config_shape(const struct config *config);

#endif
