/* What a config takes from the model that its run starts from. */
#ifndef MODEL_FILES_CONFIG_INIT_H
#define MODEL_FILES_CONFIG_INIT_H

#include "data/base/error.h"
#include "model/config/config_read.h"

/* Fills the sizes, and the tokenizer, that neither a key nor a preset gave from
 * model.init_from/config.json, if there is one. Fails when it is no config.json of a GPT-2, and
 * when the directory itself is missing though it is needed; the message begins with where it was
 * named. */
int config_init(struct config *config, const struct config_origins *origins, struct error *error);

/* The tokenizer of a model of Hugging Face: GPT-2's kind if its vocabulary is as large as GPT-2's,
 * or if the directory has such files; but 256 tokens are bytes. */
enum config_tokenizer config_tokenizer_of_model(int64_t vocab_size, const char *directory);

#endif
