/* A block of text to tokens, by all threads of OpenMP.
 *
 * The block is divided at places that do not change its tokens, and the parts are encoded in any
 * order but put in theirs, so the tokens do not depend on the number of threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/base/error.h"
#include "data/base/progress.h"
#include "data/text/tokenizer.h"
#include "data/text/tokens.h"

/* What stands before a document. */
enum document_head { HEAD_NONE, HEAD_END_OF_TEXT, HEAD_EMPTY_LINE };

/* Where a document begins in a block. */
struct document_start {
    uint32_t at;
    uint8_t is_row; /* of JSON Lines */
    uint8_t head;   /* an enum document_head */
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

/* Puts the tokens of block[begin .. end) into writer, where `end` is at most `filled`, which only
 * the progress needs. starts [start_count]: those in begin .. end - 1, in order. */
int block_encoder_put(struct block_encoder *encoder, struct shard_writer *writer, const char *block,
                      size_t begin, size_t end, size_t filled, const struct document_start *starts,
                      size_t start_count, struct error *error);
