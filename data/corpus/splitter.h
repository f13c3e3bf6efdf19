/* Documents into two sets of shards, for training and for validation.
 *
 * Text is collected in blocks of 16 MiB, so that memory does not depend on its length, and the
 * length need not be known. Each block gives its end to validation and the rest to training; the
 * whole text does, if it is shorter. Documents are kept whole where that is possible:
 *
 *     - a block ends with the last document that ends in its second half;
 *     - validation gets from half to twice its share, and begins with the document whose beginning
 *       is nearest to what it should get.
 *
 * Where no document ends there, one is torn: a text of bytes at the very place, other text at the
 * nearest place before it where tokens stay the same (data/tokenize/cuts.h), or else between
 * characters. The shards are a function of the documents and the fraction alone.
 *
 * With GPT-2's tokenizer the token <|endoftext|> stands before each document. Others have their
 * own there, and one behind each document if they have another for that. Bytes have no such token:
 * text files are joined as they are, and rows of JSON Lines are set apart by two line feeds. Empty
 * documents leave nothing.
 *
 * Of pairs, prompts and their completions, only the completion counts in the loss, and what ends
 * it: the tokenizer's `stop`, or the line feeds. Where that is what stands before a document too,
 * it stands there once. Prompt and completion are encoded each alone. Once there is a pair,
 * validation begins with a document or is left out: nobody learns from an answer without its
 * question. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/block_encoder.h"
#include "data/corpus/documents.h"
#include "data/corpus/tokens.h"

enum { SPLITTER_BLOCK_BYTES = 16 << 20, SPLITTER_MARKS_MAX = 1 << 20 };

/* A set of shards as it grows. */
struct splitter_side {
    struct shard_writer writer;
    bool has_text, ends_with_row;
    bool stopped; /* it ends with the end of a completion */
};

struct splitter {
    const struct tokenizer *tokenizer;
    struct progress *progress;
    double val_fraction;
    size_t block_bytes; /* SPLITTER_BLOCK_BYTES, which tests make smaller */
    char *block;        /* [block_bytes] */
    size_t filled;
    struct block_mark *marks; /* stb_ds array: those in the block */
    bool begins;              /* whether a document begins with the next byte, */
    bool is_row, is_pair;     /* and its kind */
    bool open_is_row;         /* the kind of the document that was put last */
    bool open_counts;         /* whether its text counts in the loss where the block begins */
    bool any_pair;
    bool open_text; /* a document that is no pair was begun and not ended */
    struct block_encoder encoder;
    struct splitter_side train, val;
    uint64_t documents; /* not counting empty ones */
};

/* train and val: prefixes of the shards, in folders that exist. The tokenizer and progress must
 * outlive the splitter. Afterwards splitter_close, on failure too. */
int splitter_open(struct splitter *splitter, const struct tokenizer *tokenizer, double val_fraction,
                  const char *train, const char *val, uint64_t shard_tokens,
                  struct progress *progress, struct error *error);
int splitter_put(struct splitter *splitter, const struct document_piece *piece,
                 struct error *error);

/* Puts what is left and completes the last shards; none has its name yet. */
int splitter_finish(struct splitter *splitter, struct error *error);

/* Gives the shards their names, as shard_writer_publish does. */
int splitter_publish(struct splitter *splitter, struct error *error);

/* Releases everything and removes what is not published. */
void splitter_close(struct splitter *splitter);
