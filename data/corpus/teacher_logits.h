/* The k largest logits of a teacher at each token of a set of shards, for distillation. The file
 * FOLDER/NAME.logits belongs to the shard NAME.bin and to the sequences that a loader makes of it:
 *
 *     bytes 0 .. 255   struct teacher_header, little-endian
 *     bytes 256 ..     a record for each token but the last: the prediction of the next token
 *
 *     k token ids, ascending, as uint16, or as int32 if the vocabulary needs it
 *     k logits as fp16, less the largest of the row, which is therefore 0
 *
 * Records of tokens that no sequence has are zero.
 *
 * A softmax needs only differences of logits, at any temperature, so nothing else is stored.
 * Rounding moves a probability by at most 1.8e-4 of the largest one: fp16 rounds a difference d to
 * within 2^-11 d, and d e^-d is at most 1 / e. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/corpus/tokens.h"
#include "data/util/error.h"
#include "data/util/file_reader.h"
#include "data/util/files.h"
#include "data/util/sha256.h"

/* Documents are isolated; sequences are packed with whole ones. Without: all of a sequence, cut. */
enum { TEACHER_ISOLATED = 1, TEACHER_WHOLE = 2 };

/* TEACHER_TOP_MAX: the same as DISTILLATION_TOP_MAX (kernels/kernels.h). */
enum { TEACHER_VERSION = 1, TEACHER_HEADER_BYTES = 256, TEACHER_TOP_MAX = 1024 };

/* Header of a file: everything that the logits depend on. */
struct teacher_header {
    char magic[4]; /* "TOPK" */
    uint32_t version;
    uint32_t top;        /* k, 1..TEACHER_TOP_MAX */
    uint32_t vocab_size; /* of the teacher */
    uint32_t seq_len;    /* tokens of a sequence, the context of its last token */
    uint32_t context;    /* TEACHER_... flags: what tokens attended to */
    uint64_t records;
    char tokens[SHA256_HEX_MAX + 7];  /* SHA-256 of the shard's tokens; with flags, of the marks of
                                       * its documents too */
    char teacher[SHA256_HEX_MAX + 7]; /* SHA-256 of all that defines the teacher */
    char unused[TEACHER_HEADER_BYTES - 32 - 2 * (SHA256_HEX_MAX + 7)];
};

/* Fills in all but `teacher` for the logits of a shard. Fails if the shard cannot be read. */
int teacher_describe(struct teacher_header *header, const struct token_shard *shard, int64_t top,
                     int64_t vocab_size, int64_t seq_len, uint32_t context, struct error *error);

/* Writes the path of the file of a shard in `folder`. */
int teacher_path(char path[FILE_PATH_MAX], const char *folder, const struct token_shard *shard,
                 struct error *error);

/* Fails if two shards, of different folders, would have the same file. */
int teacher_check_names(const struct tokens *tokens, struct error *error);

/* Returns the bytes of a record. */
size_t teacher_record_bytes(const struct teacher_header *header);

/* Packs k ascending tokens and their fp16 logits as a record. */
void teacher_pack(const struct teacher_header *header, void *record, const int32_t *tokens,
                  const uint16_t *logits);

/* Reads and checks the header of an open file: magic, version, sizes. */
int teacher_read_header(struct teacher_header *header, const struct file_reader *file,
                        struct error *error);

/* The files of a set of shards. */
struct teacher_logits {
    struct file_reader *files;    /* stb_ds array, one for each shard */
    struct teacher_header header; /* of the first */
};

/* Opens the files in `folder`, one for each shard. Fails if one is missing, truncated, or was
 * written for other tokens, another seq_len, context or vocabulary, or if their k differ. On
 * failure nothing is left to close. */
int teacher_open(struct teacher_logits *teacher, const char *folder, const struct tokens *tokens,
                 int64_t vocab_size, int64_t seq_len, uint32_t context, struct error *error);
void teacher_close(struct teacher_logits *teacher);

/* Reads the records first .. first + count - 1 of shard number `shard` into tokens [count, k] and
 * logits [count, k] in fp16. Fails if they are damaged. */
int teacher_read(const struct teacher_logits *teacher, size_t shard, uint64_t first, size_t count,
                 int32_t *tokens, uint16_t *logits, struct error *error);
