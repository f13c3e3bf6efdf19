/* Finds and loads a config file, and returns a complete and valid config. */
#pragma once

#include "data/util/error.h"
#include "model/config/config.h"

/* Reads the file at path, then applies overrides ("key.path=value", the texts of --set, in order;
 * the last one for a key wins), the sizes of model.init_from, the preset and the computed defaults.
 * Checks every value, and values against each other. On success *config is complete and valid. On
 * failure returns -1 with the file and line, or the --set text, in error, and *config is
 * undefined. */
int config_load(struct config *config, const char *path, char *const *overrides, int override_count,
                struct error *error);

/* Loads config.json of a run, like config_load. `directory` is that of a run or of one of its
 * checkpoints. run_dir and name come from this path instead of the file, which may be untrusted:
 * a run that resumes writes only there. Overrides still take precedence. */
int config_load_run(struct config *config, const char *directory, char *const *overrides,
                    int override_count, struct error *error);

/* Applies more overrides to a loaded config and checks it again. Messages name path as its
 * origin. */
int config_override(struct config *config, const char *path, char *const *overrides,
                    int override_count, struct error *error);

/* Returns the kind of tokenizer of a Hugging Face model: bytes for 256 tokens, otherwise files if
 * the directory has them. Without files: bytes for a vocabulary smaller than GPT-2's, GPT-2's for
 * one of its size (or padded), and files for a larger one. */
enum tokenizer_kind config_tokenizer_of_model(int64_t vocab_size, const char *directory);

/* Finds the config file of a name given by the user, which may lack its ".json": in the current
 * directory, in configs/ beside the executable, then in ./configs. A name with a '/' is a path from
 * the current directory. Fails with the paths tried if there is no such file, or if the path does
 * not fit in size bytes. */
int config_find(char *path, size_t size, const char *name, struct error *error);
