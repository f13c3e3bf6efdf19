/* From the name of a config file to a config that is complete and valid. */
#pragma once

#include "data/util/error.h"
#include "model/config/config.h"

/* Reads the file at path, then applies overrides ("key.path=value", the texts of --set, in order;
 * the last one for a key wins), what model.init_from says, the preset and the computed
 * defaults, and checks every value and what must hold between values. On success *config is
 * complete and valid. On failure returns -1 with the file and line, or the --set text, in error,
 * and *config is undefined. */
int config_load(struct config *config, const char *path, char *const *overrides, int override_count,
                struct error *error);

/* Applies more overrides to a config loaded before, and checks it again; path names its origin in
 * messages. */
int config_override(struct config *config, const char *path, char *const *overrides,
                    int override_count, struct error *error);

/* The tokenizer of a model of Hugging Face: what the directory's files say; without files GPT-2's
 * if the vocabulary is as large, padded perhaps, or files from elsewhere if it is larger; but 256
 * tokens are bytes. */
enum config_tokenizer config_tokenizer_of_model(int64_t vocab_size, const char *directory);

/* Finds the config file that a user names. A name with a '/', or of something in the current
 * folder, is itself the path; another one is looked up in configs/ beside the executable, then in
 * ./configs. Fails when it is in none of them, or when the path does not fit in size bytes. */
int config_find(char *path, size_t size, const char *name, struct error *error);
