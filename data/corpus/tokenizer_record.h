/* The record of the tokenizer that made the shards PREFIX_train_*.bin and PREFIX_val_*.bin, in
 * PREFIX_tokenizer.json:
 *
 *     {
 *       "format": 1,
 *       "kind": "gpt2" (or "bytes", "files": data/tokenize/tokenizer.h),
 *       "vocab_size": 50257,
 *       "sha256": "...",
 *       "directory": "/home/me/gpt2",
 *       "files": {"vocab.json": {"bytes": 1042301, "sha256": "..."}, ...}
 *     }
 *
 * directory is the absolute path of the files when the shards were made. For bytes it is null, and
 * files is empty. With the record beside the shards, training, sampling and export use the same
 * tokenizer, or fail with the reason. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "data/tokenize/tokenizer.h"

struct tokenizer_record {
    enum tokenizer_kind kind;
    int vocab_size;
    char sha256[SHA256_HEX_MAX];   /* "" for bytes */
    char directory[FILE_PATH_MAX]; /* "" for bytes */
    int file_count;
    struct {
        char name[32];
        uint64_t bytes;
        char sha256[SHA256_HEX_MAX];
    } files[TOKENIZER_FILES_MAX];
    char path[FILE_PATH_MAX]; /* path of the record, for messages */
};

/* The functions below write PREFIX_tokenizer.json durably, in steps around the replacement of
 * shards. stage writes PREFIX_tokenizer.json.part, so that a full disk is noticed early; directory
 * is made absolute. remove deletes an old record before the shards change, and succeeds if there is
 * none. publish gives the new record its name after the shards have theirs. So a record never lies
 * beside shards of another tokenizer, even after a crash; shards without a record are possible.
 * unstage removes the file that stage has written. */
int tokenizer_record_stage(const char *prefix, const struct tokenizer *tokenizer,
                           const char *directory, struct error *error);
int tokenizer_record_remove(const char *prefix, struct error *error);
int tokenizer_record_publish(const char *prefix, struct error *error);
void tokenizer_record_unstage(const char *prefix);

/* Reads the record of a shard, PREFIX_tokenizer.json for a path PREFIX_train_NNNNNN.bin or
 * PREFIX_val_NNNNNN.bin. Returns 0, RESULT_NONE if there is no record (as for shards of other
 * programs), or -1 with a message if it is malformed. */
int tokenizer_record_of_shard(struct tokenizer_record *record, const char *shard_path,
                              struct error *error);

/* Fails unless the tokenizer matches the record: kind, vocabulary, tokens and merges. The message
 * names the shards, the file and the remedy. */
int tokenizer_record_check(const struct tokenizer_record *record, const struct tokenizer *tokenizer,
                           struct error *error);
