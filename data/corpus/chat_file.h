/* The chat template in the folder of a tokenizer, as transformers finds it. */
#pragma once

#include <stdio.h>

#include "data/corpus/chat.h"
#include "data/util/error.h"

#define CHAT_TEMPLATE_NAME "chat_template.jinja"

/* Reads the template of a folder, a Jinja text that the caller frees: chat_template.jinja, or
 * "chat_template" in tokenizer_config.json, of several the one named "default". Returns
 * RESULT_NONE, with *text NULL, if there is none. */
int chat_file_read(char **text, const char *directory, struct error *error);

/* Prints a note, after `prefix`, if the folder has a template that is not the text of
 * chat_template_text: its chats may differ from those of the built-in template. directory NULL:
 * none. */
void chat_file_note(FILE *out, const char *prefix, const char *directory,
                    const struct chat_template *chat);
