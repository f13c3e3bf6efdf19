/* Divides documents between two sets of shards, for training and for validation.
 *
 * Text is collected in blocks of 16 MiB, so memory does not depend on its length, which need not be
 * known. The end of each block becomes validation text, the rest training text. A shorter text is a
 * single block. Documents are kept whole where possible:
 *
 *     - a block ends with the last document that ends in its second half;
 *     - validation gets from half to twice its share, and begins with the document whose beginning
 *       is nearest to what it should get.
 *
 * If no document ends there, one is split. For the bytes tokenizer that is exactly at the limit.
 * For others it is at the nearest preceding position where tokens stay the same
 * (data/tokenize/cuts.h), or else between characters. The shards are a function of the documents
 * and the fraction alone.
 *
 * GPT-2's tokenizer puts the token <|endoftext|> before each document. Others use their own token,
 * and one after each document if they have a separate token for it. Bytes have no such token: text
 * files are joined unchanged, and rows of JSON Lines are separated by two line feeds. Empty
 * documents produce nothing.
 *
 * In pairs of a prompt and its completion, only the completion counts in the loss, together with
 * its end: the tokenizer's `stop`, or the line feeds. If `stop` is also the token before a
 * document, it appears once. A row that begins or ends with the name of such a token gets no second
 * one. The segments of a row are encoded together; a token of two segments belongs to the second.
 * Rendered rows have their own special tokens, so nothing is added to them.
 *
 * Pairs of answers (data/corpus/pair_rows.h) share no token, so `stop` appears twice between two
 * documents. Blocks and validation begin with the first document of a pair, and a block grows until
 * it holds one. Other documents beside them are an error.
 *
 * Once there is a pair or a rendered row, validation begins with a document or is left out, since
 * training on an answer without its prompt is useless, and the first tokens of documents are
 * marked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/corpus/block_encoder.h"
#include "data/corpus/documents.h"
#include "data/corpus/tokens.h"

enum { SPLITTER_BLOCK_BYTES = 16 << 20, SPLITTER_MARKS_MAX = 1 << 20 };

/* One of the two sets of shards while it is written. */
struct splitter_side {
    struct shard_writer writer;
    bool has_text, ends_with_row;
    bool stopped; /* the last token ends a completion */
};

struct splitter {
    const struct tokenizer *tokenizer;
    struct progress *progress;
    double val_fraction;
    size_t block_bytes; /* SPLITTER_BLOCK_BYTES; smaller in tests, larger for a long pair */
    char *block;        /* [block_bytes] */
    size_t filled;
    struct block_mark *marks; /* stb_ds array: marks in the block */
    bool begins;              /* a document begins with the next byte, */
    bool is_row;              /* and this is its kind, */
    bool is_plain;            /* special tokens are not recognized in the next byte */
    enum document_form form;
    uint8_t first_marks; /* and these are the marks of its first token, or 0 if not of a pair */
    bool has_pairs;      /* documents are pairs */
    struct block_mark before; /* the last mark before the block */
    bool any_masked;          /* there has been a pair or a rendered row */
    bool is_open;             /* the last document is not empty and has not ended yet */
    struct block_encoder encoder;
    struct splitter_side train, val;
    uint64_t documents; /* number of documents that are not empty */
};

/* train and val: prefixes of the shards, in existing folders. The tokenizer and progress must
 * outlive the splitter. Call splitter_close afterwards, also on failure. */
int splitter_open(struct splitter *splitter, const struct tokenizer *tokenizer, double val_fraction,
                  const char *train, const char *val, uint64_t shard_tokens,
                  struct progress *progress, struct error *error);
int splitter_put(struct splitter *splitter, const struct document_piece *piece,
                 struct error *error);

/* Writes the remaining text and completes the last shards. None has its final name yet. */
int splitter_finish(struct splitter *splitter, struct error *error);

/* Gives the shards their final names, as shard_writer_publish does. */
int splitter_publish(struct splitter *splitter, struct error *error);

/* Releases everything and removes unpublished files. */
void splitter_close(struct splitter *splitter);
