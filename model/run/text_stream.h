/* Text on its way to a terminal: tokens in, whole characters out as soon as they are whole. */
#ifndef MODEL_RUN_TEXT_STREAM_H
#define MODEL_RUN_TEXT_STREAM_H

#include <stdint.h>
#include <stdio.h>

#include "data/text/tokenizer.h"

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

#endif
