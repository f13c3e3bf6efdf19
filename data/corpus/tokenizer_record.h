/* PREFIX_tokenizer.json: which tokenizer made the shards PREFIX_train_*.bin and PREFIX_val_*.bin.
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
 * directory is where the files were, an absolute path; for bytes it is null, and files is empty. It
 * stands beside the shards, so that training, sampling and export use the same tokenizer or say why
 * not. */
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
    char path[FILE_PATH_MAX]; /* of the record itself, for messages */
};

/* Write PREFIX_tokenizer.json, durably, in steps for whoever replaces shards: stage writes
 * PREFIX_tokenizer.json.part, so that a full disk is noticed early (directory: as given by the
 * person, made absolute here); remove takes an old record away before the shards change; publish
 * gives the new one its name after them. So a record never stands beside shards of another
 * tokenizer, wherever the program is stopped; shards without a record may be what is left. unstage
 * removes what stage has written. Removing what is not there is a success. */
int tokenizer_record_stage(const char *prefix, const struct tokenizer *tokenizer,
                           const char *directory, struct error *error);
int tokenizer_record_remove(const char *prefix, struct error *error);
int tokenizer_record_publish(const char *prefix, struct error *error);
void tokenizer_record_unstage(const char *prefix);

/* Reads the record that belongs to a shard, by the shard's path: the name without _train_NNNNNN.bin
 * or _val_NNNNNN.bin, and _tokenizer.json. Returns 0; RESULT_NONE, as beside shards of other
 * programs; -1 with a message if it is malformed. */
int tokenizer_record_of_shard(struct tokenizer_record *record, const char *shard_path,
                              struct error *error);

/* Whether the tokenizer is the one of the record: kind, vocabulary, tokens and merges. Returns -1
 * with a message that names the shards, the file and what to do. */
int tokenizer_record_check(const struct tokenizer_record *record, const struct tokenizer *tokenizer,
                           struct error *error);
