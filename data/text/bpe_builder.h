/* From tokens and merges as files name them, in the letters of data/text/byte_alphabet.h, to a
 * byte-pair encoding: tokens first, then merges.
 *
 * What these functions refuse is what a file says, so they return the reason ("it is empty"), or
 * NULL; who reads the file adds its name and the place. */
#pragma once

#include "data/text/bpe.h"
#include "data/text/byte_alphabet.h"

#define BPE_END_OF_TEXT "<|endoftext|>"

struct bpe_token_name {
    char *key;
    int value;
};

struct bpe_builder {
    struct bpe *bpe; /* what is built; empty at first */
    struct byte_alphabet alphabet;
    struct bpe_token_name *tokens; /* stb_ds: token of a name */
    char *scratch;                 /* stb_ds */
    char reason[160];
};

void bpe_builder_open(struct bpe_builder *builder, struct bpe *bpe);

/* Releases the builder, not the encoding. */
void bpe_builder_close(struct bpe_builder *builder);

/* The token of a name, or -1. */
int bpe_builder_find(struct bpe_builder *builder, const char *name);

/* Each name once. */
const char *bpe_builder_add_token(struct bpe_builder *builder, const char *name, int token);

/* Once after the last token: they must be 0, 1, 2 ... without holes, each one's name must be in the
 * alphabet, and each byte must have a token. */
const char *bpe_builder_finish_tokens(struct bpe_builder *builder);

/* In the order of their ranks. Both parts, and both together, must be tokens. */
const char *bpe_builder_add_merge(struct bpe_builder *builder, const char *left, const char *right);
