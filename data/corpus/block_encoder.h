/* A block of text to tokens, by all threads of OpenMP.
 *
 * The block is divided at places that do not change its tokens, and the parts are encoded in any
 * order but put in theirs, so the tokens do not depend on the number of threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/progress.h"
#include "data/tokenize/tokenizer.h"
#include "data/corpus/tokens.h"

/* What is put at a mark. */
enum mark_head { HEAD_NONE, HEAD_END_OF_TEXT, HEAD_EMPTY_LINE, HEAD_STOP };

/* A place in a block between two texts that are encoded alone: where a document begins, or its
 * completion, or where a completion ends. */
struct block_mark {
    uint32_t at;
    uint8_t head;   /* an enum mark_head */
    uint8_t counts; /* whether the head, and the text from here on, counts in the loss */
    uint8_t begins; /* a document begins here */
    uint8_t is_row; /* this document is one of JSON Lines */
};

/* Text that a writer is to get. */
struct block_text {
    const char *block;
    size_t begin, end;              /* of it, in the block */
    bool counts;                    /* whether the text from begin on counts in the loss */
    const struct block_mark *marks; /* [mark_count] those of it, in order; at the end, too */
    size_t mark_count;
};

struct block_part;

struct block_encoder {
    const struct tokenizer *tokenizer;
    struct tokenizer_encoder **encoders; /* [thread_count] */
    int32_t **tokens; /* [thread_count] stb_ds arrays: of the part that a thread encodes */
    int thread_count;
    struct block_part *parts; /* stb_ds array, whose memory for tokens is used again */
    struct progress *progress;
};

/* The tokenizer and progress must outlive it. On failure nothing is left to close. */
int block_encoder_open(struct block_encoder *encoder, const struct tokenizer *tokenizer,
                       struct progress *progress, struct error *error);
void block_encoder_close(struct block_encoder *encoder);

/* Puts the tokens of a text into writer. filled: of its block, which only the progress needs. */
int block_encoder_put(struct block_encoder *encoder, struct shard_writer *writer,
                      const struct block_text *text, size_t filled, struct error *error);
