/* Printing of generated text: each character is printed as soon as the tokens so far contain all of
 * its bytes, and rule out that a stop string begins with it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/tokenize/tokenizer.h"

struct text_stream {
    FILE *out;
    const struct tokenizer *tokenizer;
    char *const *stops; /* optional stb_ds array of strings that end the text, none of them empty */
    char *held;         /* stb_ds array: bytes that may be the beginning of a stop string */
    char *run;          /* stb_ds array: bytes of the last tokens of byte_fallback */
    uint8_t pending[4]; /* first bytes of an incomplete character */
    size_t pending_size;
    bool keeps_controls; /* prints control characters as they are: no terminal reads them */
    int64_t tokens;      /* tokens put */
    int32_t last;        /* the last of them */
    bool stopped;        /* a stop string has ended the text */
};

/* Prints printable UTF-8, line breaks and tabs unchanged. Anything else becomes U+FFFD, except
 * control characters with keeps_controls. An incomplete character at the end stays pending until
 * its remaining bytes arrive. */
void text_stream_put(struct text_stream *stream, const void *bytes, size_t size);

/* Prints the bytes of a token in the same way, up to the first stop string, and flushes. False once
 * there is one. Tokens of byte_fallback in a row are printed once another token follows: as in
 * Hugging Face's decoder, each is U+FFFD unless all of them are UTF-8. Serves as
 * sample_options.emit, with an array of streams, one a text, as context. */
bool text_stream_token(void *streams, int64_t text, int token);

/* Prints what is held, and U+FFFD for each byte of an incomplete character, and flushes. The stream
 * can be used again. */
void text_stream_end(struct text_stream *stream);
