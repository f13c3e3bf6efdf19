/* Token shards: files of 16-bit or 32-bit tokens in the two formats of llm.c. Both are read and
 * written:
 *
 *     bytes 0 ..1023    256 little-endian int32: [0] = 20240520, [1] = 1, [2] = token count
 *     bytes 1024 ..     the tokens, little-endian uint16
 *
 * or [0] = 20240801, [1] = 7 and uint32 tokens. 16 bits are used if the vocabulary permits. One set
 * may contain files of both kinds. A token count beyond 32 bits continues in [3], which is
 * otherwise zero. This is our own extension, and shard_writer never needs it. [4] is 1 if a mask
 * belongs to the shard (data/corpus/token_mask.h), else 0 as in llm.c.
 *
 * Raw files of nanoGPT (train.bin), which hold only tokens, can be read as well. A file counts as
 * one if its name ends in .bin, its size is even and not 0, and it begins with neither of the two
 * numbers above. As 16-bit tokens these would begin with 55432 or 55713, beyond GPT-2's vocabulary.
 * A text renamed to .bin is detected only by tokens outside of the vocabulary. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/file_reader.h"
#include "data/util/files.h"
#include "data/corpus/token_mask.h"
#include "data/tokenize/vocabulary.h"

enum {
    SHARD_MAGIC_16 = 20240520,
    SHARD_VERSION_16 = 1,
    SHARD_MAGIC_32 = 20240801,
    SHARD_VERSION_32 = 7,
    SHARD_HEADER_BYTES = 1024,
    SHARD_TOKENS_DEFAULT = 100000000,
    SHARD_TOKENS_MAX = INT32_MAX, /* limit of all readers of the format */
};

struct token_shard {
    char *name; /* path, or the name given to tokens_from_memory */
    uint64_t count;
    int token_bytes;         /* 2 or 4; values are not checked, so 4 bytes may hold any number */
    uint64_t first_byte;     /* offset of the tokens in the file */
    struct file_reader file; /* not open if the tokens are in memory */
    int32_t *owned;          /* [count] tokens in memory, or NULL */
    bool raw;                /* true for a file of nanoGPT, without a header */
    bool is_masked;          /* the header says that a mask belongs to the shard */
    struct token_mask mask;
};

/* A set of shards, sorted by name. Read-only once opened, so any thread may read it. */
struct tokens {
    struct token_shard *shards; /* stb_ds array */
    uint64_t count;             /* tokens in all shards */
    uint64_t counted;           /* tokens that count in the loss */
};

/* Opens the shards that `pattern` matches: one path, or a glob with * ? [] or a leading ~. A
 * pattern that is the name of an existing file means that file. Masks among the matches are
 * skipped; each shard's own mask is opened with it. Tokens are read from the disk when they are
 * used, so a set may be larger than memory.
 *
 * Fails if nothing matches, if a file is unreadable, is not a shard or does not have the size in
 * its header, if a mask is damaged, and if no token of the set counts. On failure nothing is left
 * to close. */
int tokens_open(struct tokens *tokens, const char *pattern, struct error *error);

/* Makes a set of one shard from `owned`, [count] and allocated by malloc. The set takes ownership
 * of it, also on failure. `name` replaces a path in messages. */
int tokens_from_memory(struct tokens *tokens, int32_t *owned, uint64_t count, const char *name,
                       struct error *error);

/* Likewise, with the mask of marks [count], as token_mask_from_marks makes it. Fails if no token
 * counts. */
int tokens_from_memory_marked(struct tokens *tokens, int32_t *owned, const uint8_t *marks,
                              uint64_t count, const char *name, struct error *error);

/* Reads the tokens first .. first + count - 1 < shard->count. Fails if the file has been truncated
 * since it was opened, or on a disk error. */
int token_shard_read(const struct token_shard *shard, int32_t *tokens, uint64_t first, size_t count,
                     struct error *error);

/* Releases everything. Harmless on a set that failed to open or is already closed. */
void tokens_close(struct tokens *tokens);

/* Writes a set of shards PREFIX_000000.bin, PREFIX_000001.bin ... in memory that does not depend on
 * their size. Files are first written and made durable as PREFIX_000000.bin.part ..., and get their
 * final names once the whole set is complete: open, put ..., finish, publish. Before publish,
 * shard_writer_abandon restores the previous state of the disk. A shard with tokens that do not
 * count or that begin a document, by their marks, gets a mask, PREFIX_000000.mask, in the same way;
 * other shards have none. Where tokens have marks, a shard ends before the first document, or with
 * has_pairs the first pair, that begins at or after shard_tokens. */
struct shard_writer {
    char *prefix; /* NULL if not open */
    int vocab_size;
    bool has_pairs; /* documents are pairs; the caller sets it before the first token */
    uint64_t shard_tokens;
    struct file_writer file; /* the shard being written if tokens_in_shard > 0 */
    struct mask_writer mask; /* its mask, opened at the first token that needs one */
    uint64_t tokens_in_shard;
    uint64_t tokens;  /* number of tokens written so far */
    uint64_t ignored; /* tokens that do not count in the loss */
    uint64_t shards;  /* number of complete shards */
};

/* Counts the files PREFIX_NNNNNN.bin (six digits or more). A missing directory has none. */
int shards_existing(const char *prefix, uint64_t *count, struct error *error);

/* vocab_size: every token is smaller; it decides between 16 and 32 bits. shard_tokens: tokens per
 * shard, 1 .. SHARD_TOKENS_MAX. Removes the .part files of a killed writer of the same prefix. The
 * directory must exist. */
int shard_writer_open(struct shard_writer *writer, const char *prefix, int vocab_size,
                      uint64_t shard_tokens, struct error *error);

/* Put tokens in two steps, so that threads can share the first one. Packed tokens have the format
 * of this writer's files, 2 or 4 bytes each, aligned to that size. marks: optional [count], of each
 * token, in the loss or at the beginning of a document (data/corpus/token_mask.h). */
size_t shard_writer_token_bytes(const struct shard_writer *writer);
void shard_writer_pack(const struct shard_writer *writer, void *packed, const int32_t *tokens,
                       size_t count);
int shard_writer_put_packed(struct shard_writer *writer, const void *packed, const uint8_t *marks,
                            uint64_t count, struct error *error);

/* Completes the last shard. Only publish or abandon may follow. */
int shard_writer_finish(struct shard_writer *writer, struct error *error);

/* Gives the shards their final names and closes the writer. All older shards of the prefix are
 * removed first. So old and new shards never exist side by side, even after a crash, and no shard
 * exists without its mask. A failure after the removal also closes the writer, and leaves the new
 * shards as .part files. */
int shard_writer_publish(struct shard_writer *writer, struct error *error);

/* Removes all files of this writer. Harmless after publish and on a zero-initialized struct. Call
 * it after a failure of any function above, except shard_writer_open, which leaves nothing
 * behind. */
void shard_writer_abandon(struct shard_writer *writer);
