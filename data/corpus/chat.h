/* Renders conversations as the chat templates of models do: ChatML, Llama 3's, Mistral's, Gemma's,
 * OLMo 2's and EXAONE 4's. The special tokens of a tokenizer decide between them, and the template
 * in its folder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/corpus/jsonl.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"

/* A part of a row: a text that counts in the loss, or one that does not. */
struct segment {
    const char *text; /* [size] */
    size_t size;
    bool in_loss;
    bool is_template; /* true for text of a template, false for text of the row */
    bool is_plain;    /* true if special tokens are not recognized in it */
};

static inline struct segment segment_of(const char *text, size_t size, bool in_loss) {
    return (struct segment){.text = text, .size = size, .in_loss = in_loss};
}

struct chat_template;

/* Returns the template of this index, from 0, or NULL if there is none. */
const struct chat_template *chat_template_at(int index);

/* True if the tokenizer has the special tokens of a template and its own template, if it has one,
 * is of that kind. own: the text of the latter, or NULL. */
bool chat_template_fits(const struct chat_template *chat, const struct tokenizer *tokenizer,
                        const char *own);

/* True if a message of this role is an answer of the assistant. */
bool chat_is_assistant(const struct jsonl_member *role);

/* True if the first segment of a rendered conversation begins a message of the system. */
bool chat_begins_with_system(const struct chat_template *chat, const struct segment *first);

/* Appends a conversation to *segments, an stb_ds array. values [2 * count]: role and content of
 * each message in turn. Only the contents of the assistant, unless marked untrained, and the tokens
 * that end them count in the loss. Segments refer to the values' text.
 *
 * Fails, with the number of the message, if a role is unknown or, for Mistral and Gemma, not in
 * turn, if an answer of the assistant is blank, and if there is none. */
int chat_render(const struct chat_template *chat, const struct jsonl_member *values, size_t count,
                struct segment **segments, struct error *error);

/* Likewise, but of the assistant's messages only those from `first` on count in the loss. */
int chat_render_from(const struct chat_template *chat, const struct jsonl_member *values,
                     size_t count, size_t first, struct segment **segments, struct error *error);

/* Appends one turn of a conversation to *text, an stb_ds array without a NUL: what precedes the
 * user's message, the message, and what precedes the assistant's answer. The first turn begins the
 * text, with the system message if there is one (or NULL). Later ones first end the answer before.
 * The text is that of chat_render, except that Mistral's template moves the system message into the
 * last turn, and here it stays in the first. */
void chat_turn(const struct chat_template *chat, const char *system, const char *user, bool first,
               char **text);

/* Returns "ChatML", "Llama 3", "Mistral 7B v0.3", "Gemma", "OLMo 2" or "EXAONE 4". */
const char *chat_template_name(const struct chat_template *chat);

/* Returns the template in Jinja, for tokenizers of transformers. */
const char *chat_template_text(const struct chat_template *chat);

/* Returns the token that ends an answer of the assistant. */
int chat_end_token(const struct chat_template *chat, const struct tokenizer *tokenizer);
