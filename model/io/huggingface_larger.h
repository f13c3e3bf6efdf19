/* Models of images, sound and text of Hugging Face whose text's model can be read: config.json has
 * it in text_config, and the names of its tensors have a longer path. Text alone has the same
 * position in all sections of Qwen's "mrope", which then is plain rope. */
#pragma once

#include <stdbool.h>

#include "model/architecture/families.h"

struct cJSON;

struct larger_model {
    const char *type, *text_type; /* model_type of config.json, and of text_config */
    enum model_family family;     /* the one that text_type means */
    bool flat;          /* older files have the keys of text_config beside vision_config */
    const char *module; /* path of the text's model in transformers 5: that of "model." */
    /* Defaults of the text's class that differ from its family's; 0: the same. */
    int kv_heads;
    double epsilon, rope_theta;
    int begin, end; /* tokens */
};
extern const struct larger_model larger_models[]; /* ended by a NULL type */

/* Returns the row of a config.json, or NULL for another model. */
const struct larger_model *larger_model_of(const struct cJSON *root);

/* Returns the object of the text's model in a config.json of a larger model; NULL if it has none,
 * or for another model. */
const struct cJSON *larger_model_text(const struct cJSON *root);

/* Stores the family of the text's model. Returns false if it cannot be read, or for another
 * model. */
bool larger_model_family(enum model_family *family, const struct cJSON *root);

/* Returns larger_model.module for the folder of a model, whose adapters have names with that path;
 * NULL for another model, or if config.json cannot be read. */
const char *larger_model_module(const char *directory);
