/* A config.json of Hugging Face while it is read. Internal to model/io/huggingface*.c. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "data/util/error.h"
#include "model/config/config.h"

struct huggingface_source {
    const cJSON *root;
    const char *where;  /* the path, for messages */
    const char *family; /* whose rules hold: "GPT-2", "Llama" */
    struct error *error;
};

/* Fails with what the key has, and what it should. */
int huggingface_refuse(const struct huggingface_source *source, const char *key,
                       const char *wanted);

/* Absent keys have the default of the model's class in transformers. */
bool huggingface_is_absent(const struct huggingface_source *source, const char *key);
bool huggingface_is_null(const struct huggingface_source *source, const char *key); /* or absent */

/* Refuse what is there and not as wanted; text describes it. */
int huggingface_need_number(const struct huggingface_source *source, const char *key, double wanted,
                            const char *text);
int huggingface_need_boolean(const struct huggingface_source *source, const char *key, bool wanted);

/* Read a value of the file's key into the field of our key ("model.n_layer"), whose row of the
 * option table says what is allowed, and mark it as given. */
int huggingface_read_whole(const struct huggingface_source *source, const char *key,
                           const char *path, int64_t *field, struct config *config);
int huggingface_read_number(const struct huggingface_source *source, const char *key,
                            const char *path, double *field, struct config *config);
