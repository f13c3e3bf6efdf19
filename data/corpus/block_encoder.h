/* Encodes a block of text into tokens, on all OpenMP threads.
 *
 * The block is divided at positions that do not change its tokens. Parts are encoded in any order
 * and written in text order, so the tokens do not depend on the number of threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/progress.h"
#include "data/tokenize/tokenizer.h"
#include "data/corpus/tokens.h"

/* Tokens that are written at a mark, before the text after it. */
enum separator {
    SEPARATOR_NONE,
    SEPARATOR_IN_TEXT, /* nothing: the text names the token itself */
    SEPARATOR_SHARED,  /* nothing: the token that ended the answer before also begins the text */
    SEPARATOR_END_OF_TEXT,
    SEPARATOR_EMPTY_LINE,
    SEPARATOR_STOP, /* ends a text, where the tokenizer has another token than end_of_text for it */
    SEPARATOR_EOS   /* ends an answer */
};

/* A position in a block between two texts: the beginning of a document, the end of a document, or a
 * border within a row. The texts of a row are encoded as one, except between text in which special
 * tokens are recognized and text in which they are not. */
struct block_mark {
    uint32_t at;
    uint8_t separator;   /* an enum separator */
    uint8_t in_loss;     /* true if the separator and the text after it count in the loss */
    uint8_t begins;      /* true if a document begins here, */
    uint8_t first_marks; /* and these are the marks of its first token (TOKEN_BEGINS ...) */
    uint8_t is_row;      /* true if the document is separated as a row of JSON Lines, */
    uint8_t is_rendered; /* and true if its text holds all its special tokens */
    uint8_t joins;       /* true if the text after it is encoded together with the text before */
    uint8_t is_plain;    /* true if special tokens are not recognized in the text after it */
};

/* A range of a block that one writer receives. */
struct block_text {
    const char *block;
    size_t begin, end;              /* range in the block */
    struct block_mark before;       /* the last mark before the text at `begin` */
    const struct block_mark *marks; /* [mark_count] marks in the range or at its end, in order */
    size_t mark_count;
    bool marks_documents; /* true if the first tokens of documents are marked in the mask */
    bool has_pairs;       /* true if no token belongs to two documents */
};

struct block_part;

struct block_encoder {
    const struct tokenizer *tokenizer;
    struct tokenizer_encoder **encoders; /* [thread_count] */
    int32_t **tokens; /* [thread_count] stb_ds arrays: tokens of the part that a thread encodes */
    int thread_count;
    struct block_part *parts; /* stb_ds array; parts keep their buffers for the next block */
    struct progress *progress;
};

/* The tokenizer and progress must outlive the encoder. On failure nothing is left to close. */
int block_encoder_open(struct block_encoder *encoder, const struct tokenizer *tokenizer,
                       struct progress *progress, struct error *error);
void block_encoder_close(struct block_encoder *encoder);

/* Encodes a text and appends its tokens to writer. filled: size of the block, for the progress line
 * only. */
int block_encoder_put(struct block_encoder *encoder, struct shard_writer *writer,
                      const struct block_text *text, size_t filled, struct error *error);
