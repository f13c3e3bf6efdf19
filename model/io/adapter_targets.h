/* target_modules of an adapter_config.json, matched against a model's modules as PEFT does. Source:
 * check_target_module_exists of huggingface/peft. */
#pragma once

#include "data/util/error.h"
#include "model/architecture/parameters.h"

struct cJSON;

/* Stores the targets, as bits 1 << target, that `modules` selects in a model of the shape:
 *
 *   a list    names of modules, in full or from a dot on, such as "q_proj" or "attn.c_proj"
 *   a string  a regular expression of Python that matches the module's full name, or "all-linear"
 *
 * Fails, with the reason alone, if these are not the same linear layers in all blocks, if they
 * include another module, and if the expression has a construct that is not supported. */
int adapter_targets_match(unsigned *targets, const struct cJSON *modules,
                          const struct model_shape *shape, struct error *error);
