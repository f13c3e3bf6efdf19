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
 * has a mask. In a shard without one every token counts, and no document is marked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"

enum { TOKEN_MASK_VERSION = 2, TOKEN_MASK_HEADER_BYTES = 16 };

/* Marks of a token while a mask is written: a union of these bits. */
enum { TOKEN_COUNTS = 1, TOKEN_BEGINS = 2 };

/* All zeros if every token counts and no document is marked. */
struct token_mask {
    const uint8_t *bits;   /* [(tokens + 7) / 8], or NULL if every token counts */
    const uint8_t *starts; /* the same for the first tokens of documents, or NULL */
    uint8_t *file;         /* the file, with all bits before all starts, or NULL */
    size_t file_bytes;
};

/* Writes the path of the mask that belongs to a shard. Returns false for names that do not end in
 * .bin, which have no mask. */
bool token_mask_path(char path[FILE_PATH_MAX], const char *shard_path);

/* True if a path has the name of a mask. */
bool token_mask_is_named(const char *path);

/* Reads the mask of a shard of `tokens` tokens, if there is one. Fails if the mask cannot be read,
 * is damaged or belongs to another shard, or if it is wanted but missing. */
int token_mask_open(struct token_mask *mask, const char *shard_path, uint64_t tokens, bool wanted,
                    struct error *error);
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

/* Returns how many of the tokens first .. first + count - 1 count in the loss. */
uint64_t token_mask_counted(const struct token_mask *mask, uint64_t first, uint64_t count);

/* Returns how many documents begin with these tokens. */
uint64_t token_mask_begun(const struct token_mask *mask, uint64_t first, uint64_t count);

/* Writes a mask to `path`. */
struct mask_writer {
    struct file_writer file;
    uint64_t tokens;      /* number of tokens written so far */
    uint8_t bits, starts; /* bits after the last full bytes */
};

static inline bool mask_writer_is_open(const struct mask_writer *writer) {
    return writer->file.open;
}

/* Opens a mask that begins with `tokens` tokens that count and begin no document. The directory
 * must exist. */
int mask_writer_open(struct mask_writer *writer, const char *path, uint64_t tokens,
                     struct error *error);

/* Appends the marks of tokens. marks [count]; NULL: TOKEN_COUNTS for all. */
int mask_writer_put(struct mask_writer *writer, const uint8_t *marks, uint64_t count,
                    struct error *error);

/* Makes the file durable under its name and closes the writer. */
int mask_writer_commit(struct mask_writer *writer, struct error *error);

/* Removes the unfinished file, as file_writer_abandon does. */
void mask_writer_abandon(struct mask_writer *writer);
