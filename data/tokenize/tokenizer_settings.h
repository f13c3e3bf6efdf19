/* The JSON files beside a tokenizer's vocabulary, which transformers applies to it:
 *
 *     tokenizer_config.json    tokenizer_class, add_prefix_space, added_tokens_decoder, and the
 *                              special tokens by role (eos_token, additional_special_tokens, ...)
 *     special_tokens_map.json  roles, and
 *     added_tokens.json        added tokens: both only without an added_tokens_decoder
 *     config.json              tokenizer_class or model_type, if tokenizer_config.json has none
 *
 * The rules are those of transformers 5, for tokenizers of its class TokenizersBackend. Tokens that
 * the vocabulary lacks get the next numbers. add_bos_token and add_eos_token count only where there
 * is no tokenizer.json. */
#pragma once

#include <stdbool.h>

#include "data/util/json.h"

enum tokenizer_class { TOKENIZER_CLASS_OTHER, TOKENIZER_CLASS_GPT2, TOKENIZER_CLASS_QWEN2 };

struct tokenizer_settings {
    struct json_file config, map, added, model; /* the root is NULL if there is no such file */
    enum tokenizer_class class;
    const char *class_name; /* as a file has it, or "GPT2Tokenizer" */
};

/* Reads the files of a directory that exist. On failure nothing is left to close. */
int tokenizer_settings_open(struct tokenizer_settings *settings, const char *directory,
                            struct error *error);
void tokenizer_settings_close(struct tokenizer_settings *settings);

/* Returns the content of a token such as "eos_token", or NULL if the settings have none. It belongs
 * to them. */
const char *tokenizer_settings_role(const struct tokenizer_settings *settings, const char *role);

/* Applies the settings to a parsed tokenizer.json, and sets *changed if they change it. The ids of
 * new tokens are left at 0. from_class: the root is that of a class, made for vocab.json and
 * merges.txt. add_prefix_space is applied then, or if tokenizer_config.json is of GPT-2's or Qwen's
 * class; <|endoftext|> has the roles that the settings of these classes leave out. */
int tokenizer_settings_apply(const struct tokenizer_settings *settings, struct cJSON *root,
                             bool from_class, bool *changed, struct error *error);
