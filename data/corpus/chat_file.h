/* The chat template in the folder of a tokenizer, as transformers finds it. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/corpus/chat.h"
#include "data/util/error.h"

#define CHAT_TEMPLATE_NAME "chat_template.jinja"

/* Reads the template of a folder, a Jinja text that the caller frees: chat_template.jinja, or
 * "chat_template" in tokenizer_config.json, of several the one named "default". Returns
 * RESULT_NONE, with *text NULL, if there is none. */
int chat_file_read(char **text, const char *directory, struct error *error);

/* Returns the built-in template for the tokenizer, or NULL if it has the special tokens of none, or
 * a template in its folder that is of no built-in kind. */
const struct chat_template *chat_template_of(const struct tokenizer *tokenizer);

/* Prints a note if the folder has a template whose chats may differ from those of
 * the built-in one: another text than that of chat_template_text, apart from white space, joined
 * strings, and a message of the system that it adds to chats without one. without_system: there are
 * such chats. Returns true if it does. directory NULL: none. */
bool chat_file_note(FILE *out, const char *directory, const struct chat_template *chat,
                    bool without_system);
