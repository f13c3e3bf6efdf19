/* Token shards: files of tokens in 16 or 32 bits, in the two formats of llm.c, which are also what
 * is written:
 *
 *     bytes 0 ..1023    256 little-endian int32: [0] = 20240520, [1] = 1, [2] = token count
 *     bytes 1024 ..     the tokens, little-endian uint16
 *
 * or [0] = 20240801, [1] = 7 and the tokens in uint32. 16 bits are chosen wherever the vocabulary
 * has room in them. Files of both may stand in one set. A count beyond 32 bits continues in [3],
 * which is zero in every other file; this is our own extension, and shard_writer never needs it.
 * [4] is 1 where a mask belongs to the shard (data/corpus/token_mask.h), else 0 as in llm.c.
 *
 * Also read: the raw files of nanoGPT (train.bin), which are tokens from the first byte to the
 * last. A file is taken for one if its name ends in .bin, its size is even and not 0, and it begins
 * with neither of the two numbers above; as tokens these would begin with 55432 or 55713, beyond
 * the vocabulary of GPT-2. Nothing tells a raw file from a text that was renamed to .bin, except
 * tokens outside of the vocabulary.
 *
 * A mask beside a shard says which of its tokens count in the loss (data/corpus/token_mask.h). */
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
    SHARD_TOKENS_MAX = INT32_MAX, /* what every reader of the format understands */
};

struct token_shard {
    char *name; /* the path, or what tokens_from_memory was told */
    uint64_t count;
    int token_bytes;         /* 2 or 4. What a file holds is not checked: 4 may be any number */
    uint64_t first_byte;     /* of the tokens in the file */
    struct file_reader file; /* not open, if there is none */
    int32_t *owned;          /* [count], made in memory, or NULL */
    bool raw;                /* a file of nanoGPT, without a header */
    bool is_masked;          /* by its header a mask belongs to it */
    struct token_mask mask;
};

/* A set of shards, in the order of their names. Read-only once made: any thread may read it. */
struct tokens {
    struct token_shard *shards; /* stb_ds array */
    uint64_t count;             /* of all shards together */
    uint64_t counted;           /* of them, those that count in the loss */
};

/* Opens the shards that `pattern` names: one path, or a glob with * ? [] or a leading ~. A pattern
 * that is itself the name of a file means that file. Masks that match are not taken for shards, and
 * each shard's own is opened with it. Tokens are read from the disk as they are used, so a set may
 * be larger than memory.
 *
 * Fails when nothing matches, when any file is unreadable, no shard, or not as long as its header
 * says, when a mask is damaged, and when no token of the set counts. On failure nothing is left to
 * close. */
int tokens_open(struct tokens *tokens, const char *pattern, struct error *error);

/* A set of one shard made of `owned`, [count] and allocated by malloc, which belongs to the set
 * from now on, on failure too. `name` stands for a path in messages. */
int tokens_from_memory(struct tokens *tokens, int32_t *owned, uint64_t count, const char *name,
                       struct error *error);

/* Stores the tokens first .. first + count - 1 < shard->count. Fails when the file has been cut
 * short since it was opened, or its disk cannot read it. */
int token_shard_read(const struct token_shard *shard, int32_t *tokens, uint64_t first, size_t count,
                     struct error *error);

/* Releases everything. Harmless on a set that failed to open or is closed already. */
void tokens_close(struct tokens *tokens);

/* Writes a set of shards PREFIX_000000.bin, PREFIX_000001.bin ... in memory that does not depend on
 * their size. All are written and made durable as PREFIX_000000.bin.part ... and get their final
 * names only when the whole set is there: open, put ..., finish, publish. At any point before that,
 * shard_writer_abandon leaves the disk as it was. A shard with tokens that do not count gets its
 * mask, PREFIX_000000.mask, in the same way; one whose tokens all count gets none. */
struct shard_writer {
    char *prefix; /* NULL: not open */
    int vocab_size;
    uint64_t shard_tokens;
    struct file_writer file; /* the shard being written, if tokens_in_shard > 0 */
    struct mask_writer mask; /* its mask, open from its first token on that does not count */
    uint64_t tokens_in_shard;
    uint64_t tokens;  /* all put so far */
    uint64_t ignored; /* of them, those that do not count in the loss */
    uint64_t shards;  /* complete ones */
};

/* How many files PREFIX_NNNNNN.bin (six digits or more) there are. A missing directory holds none.
 */
int shards_existing(const char *prefix, uint64_t *count, struct error *error);

/* vocab_size: tokens are smaller; it decides between 16 and 32 bits. shard_tokens: tokens per
 * shard, 1 .. SHARD_TOKENS_MAX. Removes what a killed writer of the same prefix has left. The
 * directory must exist. */
int shard_writer_open(struct shard_writer *writer, const char *prefix, int vocab_size,
                      uint64_t shard_tokens, struct error *error);
int shard_writer_put(struct shard_writer *writer, const int32_t *tokens, uint64_t count,
                     struct error *error);

/* The two halves of put, for threads that share the first one out. Packed tokens are as the files
 * of this writer hold them, 2 or 4 bytes each, aligned to that. counts: optional [count], 0 for
 * each token that does not count in the loss, 1 for the others. */
size_t shard_writer_token_bytes(const struct shard_writer *writer);
void shard_writer_pack(const struct shard_writer *writer, void *packed, const int32_t *tokens,
                       size_t count);
int shard_writer_put_packed(struct shard_writer *writer, const void *packed, const uint8_t *counts,
                            uint64_t count, struct error *error);

/* Completes the last shard. Afterwards only publish or abandon. */
int shard_writer_finish(struct shard_writer *writer, struct error *error);

/* Gives the shards their names and closes the writer. Older shards of the prefix are removed first,
 * all of them: old and new ones never stand side by side, even if the machine stops in between, and
 * no shard without the mask that belongs to it.
 * A failure after that removal closes the writer too, and leaves the new ones as .part files. */
int shard_writer_publish(struct shard_writer *writer, struct error *error);

/* Removes everything this writer has written. Harmless after publish and on a zeroed struct. To be
 * called after any failure above, that of shard_writer_open excepted, where nothing is left. */
void shard_writer_abandon(struct shard_writer *writer);
