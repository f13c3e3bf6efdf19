/* Reading a config.json of a model of Hugging Face into a config: its keys, and the parts that need
 * more than a row of the table in model/io/huggingface_read.c. Internal to
 * model/io/huggingface_*.c. Functions that return int fail with a message that names the key. */
#pragma once

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "data/util/error.h"
#include "model/config/config.h"
#include "model/io/huggingface_keys.h"

/* A config.json, or an object in it, while it is read into a config. */
struct config_reader {
    const cJSON *root;
    struct config *config;
    const char *where;  /* the path, for messages */
    const char *inside; /* "", or "rope_scaling." for the keys of that object */
    const char *rules;  /* name of the family whose rules apply: "GPT-2", "Llama" */
    struct error *error;
    bool is_larger; /* the text's model of a larger one (huggingface_larger.h) */
};

/* Fails with the value of the key and the expected one. */
int reader_refuse(const struct config_reader *reader, const char *key, const char *wanted);

/* Fails if the key is present and its value, which the caller has compared, is not allowed. */
int reader_need(const struct config_reader *reader, const char *key, bool allowed,
                const char *wanted);

/* True if the key is absent, which means the default of the model's class in transformers. */
bool reader_lacks(const struct config_reader *reader, const char *key);

/* True if the key is null or absent. */
bool reader_is_null(const struct config_reader *reader, const char *key);

/* True if a value, which may be NULL, is this text. */
bool reader_is_text(const cJSON *value, const char *text);

/* Reads a flag; an absent key leaves *value as it is. */
int reader_flag(bool *value, const struct config_reader *reader, const char *key);

/* Sets a key of the config ("model.n_layer") and marks it as given. */
void reader_set(const struct config_reader *reader, const char *path, double value);

/* Reads a key into the key `path` of the config. Without a value for an absent key, or for null
 * (NAN), there must be another one. */
int reader_key(const struct config_reader *reader, const char *key, const char *path, double absent,
               double null);

/* Reads the base and the scaling of rope, as transformers does: rope_scaling counts unless it is
 * empty, then rope_parameters; and rope_theta in that object before the one beside it. But neither
 * object may be of a kind that cannot be computed, since other programs may prefer the other. Phi-3
 * GLM-4 and Qwen3.5 have a part of a head that rotates, and no kind of scaling that can be
 * computed. The sections of Qwen3.5's positions in images (mrope) are equal in text, which leaves
 * plain rope.
 */
int reader_rope(const struct config_reader *reader, enum model_family family);

/* The same for Gemma 3 and OLMo 3, which have the base and scaling of layers without a window, and
 * the base of those with one: in objects of rope_parameters or, in older files, in rope_theta with
 * rope_scaling and in Gemma's rope_local_base_freq. */
int reader_rope_of_kinds(const struct config_reader *reader, const struct model_shape *parts);

/* Reads the layers without rope, after the window: SmolLM3's list or interval; those of EXAONE 4
 * without a window, if others have one. Fails if model.no_rope_interval cannot name them. */
int reader_no_rope(const struct config_reader *reader, enum model_family family);

/* Reads the layers of Qwen3.5 that have attention, others being Gated DeltaNets. Fails if
 * model.full_attention_interval cannot name them. */
int reader_full_attention(const struct config_reader *reader);

/* Reads the attention window, if the model's longest context exceeds it, and the layers that have
 * it. If the keys of the config cannot name these, the window limits the context. Where kinds of
 * layers differ in more than the window (IN_KINDS), it is always read, and such layers are an
 * error. */
int reader_window(const struct config_reader *reader, enum model_family family);
