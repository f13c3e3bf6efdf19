/* Masks that mark the tokens of a shard that count in the loss, and the first tokens of documents.
 * A mask is a file beside its shard, PREFIX_000000.mask beside PREFIX_000000.bin:
 *
 *     bytes 0 .. 3     "MASK"
 *     bytes 4 .. 7     2, the version, a little-endian uint32
 *     bytes 8 .. 15    the number of tokens, a little-endian uint64, that of the shard
 *     bytes 16 ..      two bytes for each 8 tokens. In the first, 1 << i % 8 is set if token i
 *                      counts as a target; in the second, if a document begins with it. The last
 *                      bytes are filled up with zeros.
 *
 * A token that ends a document and begins the next one, as <|endoftext|> of GPT-2, has both bits:
 * it is the last target of one and the first input of the other.
 *
 * Version 1 lacks the second byte, so it marks no documents. The header of the shard says that it
 * has a mask. In a shard without one every token counts, and no document is marked.
 *
 * Version 3 is for shards of pairs (data/corpus/rows.h), whose documents follow one another two by
 * two: the chosen answer's and the rejected one's, or a labelled answer's and one with another
 * row's answer. Documents of pairs share no tokens, and no pair is divided between shards. Two more
 * bytes follow for each 8 tokens. In the third, a bit is set if the second document of a pair
 * begins with the token. In the fourth, the bit of a first document's first token says that its
 * answer is undesirable, and that of a second document's that the pair is a labelled row. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"

enum {
    TOKEN_MASK_VERSION = 2,
    TOKEN_MASK_VERSION_PAIRS = 3,
    TOKEN_MASK_PLANES = 4, /* bytes for each 8 tokens at most */
    TOKEN_MASK_HEADER_BYTES = 16
};

/* Marks of a token while a mask is written: a union of these bits. The last two are for the first
 * tokens of a pair's documents. */
enum { TOKEN_COUNTS = 1, TOKEN_BEGINS = 2, TOKEN_REJECTED = 4, TOKEN_LABEL = 8 };

/* All zeros if every token counts and no document is marked. */
struct token_mask {
    const uint8_t *bits;              /* [(tokens + 7) / 8], or NULL if every token counts */
    const uint8_t *starts;            /* the same for the first tokens of documents, or NULL */
    const uint8_t *rejected, *labels; /* the same for pairs, or NULL */
    uint8_t *file; /* the file, or all bits, all starts, all rejected and all labels, or NULL */
    size_t file_bytes;
};

/* Writes the path of the mask that belongs to a shard. Returns false for names that do not end in
 * .bin, which have no mask. */
bool token_mask_path(char path[FILE_PATH_MAX], const char *shard_path);

/* True if a path has the name of a mask. */
bool token_mask_is_named(const char *path);

/* Reads the mask of a shard of `tokens` tokens, if there is one. Fails if the mask cannot be read,
 * is damaged or belongs to another shard, or if it is wanted but missing. Documents of a mask of
 * pairs are checked: the first begins with the first token, and each pair has two. */
int token_mask_open(struct token_mask *mask, const char *shard_path, uint64_t tokens, bool wanted,
                    struct error *error);

/* Makes the mask of tokens in memory. marks [count]; it is a mask of pairs if any of them is
 * TOKEN_REJECTED. `name` replaces a path in messages. */
int token_mask_from_marks(struct token_mask *mask, const uint8_t *marks, uint64_t count,
                          const char *name, struct error *error);
void token_mask_close(struct token_mask *mask);

static inline bool token_mask_in_loss(const struct token_mask *mask, uint64_t token) {
    return !mask->bits || mask->bits[token / 8] >> token % 8 & 1;
}

/* True if the mask marks the first tokens of documents. */
static inline bool token_mask_has_starts(const struct token_mask *mask) {
    return mask->starts;
}

/* True if a document begins with the token. */
static inline bool token_mask_begins(const struct token_mask *mask, uint64_t token) {
    return mask->starts && mask->starts[token / 8] >> token % 8 & 1;
}

/* True if the documents are pairs. */
static inline bool token_mask_has_pairs(const struct token_mask *mask) {
    return mask->rejected;
}

/* True if the second document of a pair begins with the token. */
static inline bool token_mask_is_rejected(const struct token_mask *mask, uint64_t token) {
    return mask->rejected && mask->rejected[token / 8] >> token % 8 & 1;
}

/* True if the token, the first of a document, has TOKEN_LABEL. For the first document of a pair:
 * its answer is undesirable; for the second: the pair is a labelled row. */
static inline bool token_mask_has_label(const struct token_mask *mask, uint64_t token) {
    return mask->labels && mask->labels[token / 8] >> token % 8 & 1;
}

/* Returns how many of the tokens first .. first + count - 1 count in the loss. */
uint64_t token_mask_counted(const struct token_mask *mask, uint64_t first, uint64_t count);

/* Return the first token from `first` on with which a document begins, or that counts in the loss;
 * `end` if none before it does. */
uint64_t token_mask_next_begin(const struct token_mask *mask, uint64_t first, uint64_t end);
uint64_t token_mask_next_counted(const struct token_mask *mask, uint64_t first, uint64_t end);

/* Writes a mask to `path`. */
struct mask_writer {
    struct file_writer file;
    uint64_t tokens;                  /* number of tokens written so far */
    int planes;                       /* bytes for each 8 tokens */
    uint8_t bytes[TOKEN_MASK_PLANES]; /* those of the tokens after the last 8 */
};

static inline bool mask_writer_is_open(const struct mask_writer *writer) {
    return writer->file.open;
}

/* Opens a mask that begins with `tokens` tokens that count and begin no document. It has version 3
 * if the documents are pairs. The directory must exist. */
int mask_writer_open(struct mask_writer *writer, const char *path, bool has_pairs, uint64_t tokens,
                     struct error *error);

/* Appends the marks of tokens. marks [count]; NULL: TOKEN_COUNTS for all. */
int mask_writer_put(struct mask_writer *writer, const uint8_t *marks, uint64_t count,
                    struct error *error);

/* Makes the file durable under its name and closes the writer. */
int mask_writer_commit(struct mask_writer *writer, struct error *error);

/* Removes the unfinished file, as file_writer_abandon does. */
void mask_writer_abandon(struct mask_writer *writer);
