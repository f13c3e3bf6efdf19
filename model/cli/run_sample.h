/* ./train --sample, and printing of generated text: each character is printed as soon as the tokens
 * so far contain all of its bytes. */
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
    uint8_t pending[4]; /* first bytes of an incomplete character */
    size_t pending_size;
};

/* Prints printable UTF-8, line breaks and tabs unchanged; anything else becomes U+FFFD. An
 * incomplete character at the end stays pending until its remaining bytes arrive. */
void text_stream_put(struct text_stream *stream, const void *bytes, size_t size);

/* Prints the bytes of a token in the same way and flushes. Serves as sample_options.emit, with the
 * stream as context. */
void text_stream_token(void *stream, int token);

/* Prints U+FFFD for each byte of an incomplete character, and flushes. */
void text_stream_end(struct text_stream *stream);

/* Prints prompt, continuation and a line break to out. An empty prompt generates from the beginning
 * of a text. The fields prompt, prompt_length, vocabulary, ends, emit and context of `options` are
 * ignored: this function sets them. */
int print_sample(FILE *out, struct sample_result *result, struct gpt *gpt,
                 const struct tokenizer *tokenizer, const char *prompt,
                 const struct sample_options *options, struct error *error);

/* Prints one text per prompt of the line. `from` is a checkpoint or a Hugging Face model directory;
 * config is that of the same model. */
int run_sample(const struct config *config, const char *from, const struct command_line *line,
               struct error *error);
