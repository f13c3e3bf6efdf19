/* Text from a model, printed as it comes: tokens in, whole characters out as soon as they are
 * whole. */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "data/tokenize/tokenizer.h"
#include "model/cli/command_line.h"
#include "model/core/sample.h"

struct text_stream {
    FILE *out;
    const struct tokenizer *tokenizer;
    uint8_t held[4]; /* the beginning of a character */
    size_t held_size;
};

/* Prints the bytes as a terminal may show them: what is neither printable, a line break, a tab nor
 * valid UTF-8 becomes U+FFFD. The beginning of a character at the end waits for the rest. */
void text_stream_put(struct text_stream *stream, const void *bytes, size_t size);

/* The same for a token's bytes, and flushes. For sample_options.emit, with the stream as context.
 */
void text_stream_token(void *stream, int token);

/* Prints U+FFFD for a character that never became whole, and flushes. */
void text_stream_end(struct text_stream *stream);

/* Prints prompt and continuation to out, character by character, and a line break. An empty prompt
 * stands for the beginning of a text. options: prompt, prompt_length, vocabulary, ends, emit
 * and context are filled in here. */
int print_sample(FILE *out, struct sample_result *result, struct gpt *gpt,
                 const struct tokenizer *tokenizer, const char *prompt,
                 const struct sample_options *options, struct error *error);

/* Prints text from the model at `from`, a checkpoint or a directory of Hugging Face, for each
 * prompt of the line; config comes from it. */
int run_sample(const struct config *config, const char *from, const struct command_line *line,
               struct error *error);
