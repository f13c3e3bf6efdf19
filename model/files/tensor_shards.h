/* Writing the tensors of a model: into one safetensors file, or into several (shards) that an index
 * names, as Hugging Face's save_pretrained does, for tensor_files.h to read.
 *
 *     DIRECTORY/STEM.safetensors                      where all data fit into limit bytes; else
 *     DIRECTORY/STEM-00001-of-00003.safetensors ...   as many tensors as fit, in the given order
 *     DIRECTORY/STEM.safetensors.index.json           {"metadata": {"total_size": bytes of all
 *                                                     data}, "weight_map": {tensor: file, ...}}
 *
 * No tensor is split: one of more than limit bytes is alone in its file. Each file is durable by
 * itself, the index last; that they appear together is up to the directory they are written in. */
#pragma once

#include "data/base/error.h"
#include "data/base/sha256.h"
#include "model/files/safetensors_write.h"

enum { STORED_FILE_NAME_MAX = 64 };

/* A file that was written. */
struct stored_file {
    char name[STORED_FILE_NAME_MAX]; /* in its directory */
    uint64_t bytes;
    char sha256[SHA256_HEX_MAX];
};

struct tensor_shards {
    const char *directory, *stem;
    const struct safetensors_entry *entries; /* [count], of all shards */
    int count;
    uint64_t limit;
    int shard, shard_count; /* the one that is open, from 0, and how many there will be */
    int end;                /* of the open one: first entry of the next */
    struct safetensors_writer writer;
    struct stored_file **files; /* the caller's */
};

/* Begins the files. The strings and entries must last until the end, or until it is abandoned; what
 * is written is appended to *files, an stb_ds array. Fails as safetensors_write_begin does, and
 * when there would be more files than tensor_files.h reads. After a failure of this or of the
 * following two nothing is left to abandon; files that were finished stay. */
int tensor_shards_begin(struct tensor_shards *shards, const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        struct stored_file **files, struct error *error);

/* Appends to the data of all tensors, which follow each other; the pieces may have any size. */
int tensor_shards_data(struct tensor_shards *shards, const void *bytes, size_t size,
                       struct error *error);

/* Finishes the last file, and the index if there are several. */
int tensor_shards_end(struct tensor_shards *shards, struct error *error);

void tensor_shards_abandon(struct tensor_shards *shards);
