/* A config.json of Hugging Face while it is read. Internal to model/io/huggingface*.c. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "data/util/error.h"
#include "model/config/config.h"

struct huggingface_source {
    const cJSON *root;
    const char *where;  /* the path, for messages */
    const char *family; /* family whose rules apply: "GPT-2", "Llama" */
    struct error *error;
};

/* Fails with the value of the key and the expected one. */
int huggingface_refuse(const struct huggingface_source *source, const char *key,
                       const char *wanted);

/* True if the key is absent, which means the default of the model's class in transformers. */
bool huggingface_is_absent(const struct huggingface_source *source, const char *key);
bool huggingface_is_null(const struct huggingface_source *source,
                         const char *key); /* true if null or absent */

/* Fail if the key is present with another value than wanted; text describes the expected value. */
int huggingface_need_number(const struct huggingface_source *source, const char *key, double wanted,
                            const char *text);
int huggingface_need_boolean(const struct huggingface_source *source, const char *key, bool wanted);

/* Read the value of the file's key into the field of a config key ("model.n_layer"), and mark it as
 * given. The row of the option table determines the allowed values. */
int huggingface_read_whole(const struct huggingface_source *source, const char *key,
                           const char *path, int64_t *field, struct config *config);
int huggingface_read_number(const struct huggingface_source *source, const char *key,
                            const char *path, double *field, struct config *config);
