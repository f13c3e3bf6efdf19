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

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "model/io/safetensors_write.h"

enum { STORED_FILE_NAME_MAX = 64 };

/* A file that was written. */
struct stored_file {
    char name[STORED_FILE_NAME_MAX]; /* in its directory */
    uint64_t bytes;
    char sha256[SHA256_HEX_MAX];
};

/* How tensors are divided among files. */
struct tensor_division {
    const char *stem;
    const struct safetensors_entry *entries; /* [count], the caller's */
    int count;
    int *ends; /* stb_ds array: of each file the entry after its last */
};

/* Divides them: each file has as many as fit into limit bytes, at least one. With `files` > 1 there
 * are that many files of about the same size, or a multiple of that where the average would be
 * above the limit, or as many as there are tensors: a file may be larger by a tensor. Fails when
 * there would be more than tensor_files.h reads; closing is then harmless. */
int tensor_division_open(struct tensor_division *division, const char *stem,
                         const struct safetensors_entry *entries, int count, uint64_t limit,
                         int files, struct error *error);
void tensor_division_close(struct tensor_division *division);

/* "STEM.safetensors", or "STEM-00002-of-00003.safetensors" of several. file: counted from 0. */
void tensor_division_name(char name[STORED_FILE_NAME_MAX], const struct tensor_division *division,
                          int file);

/* Begins one of the files in a directory, or ends it and stores what it became in *stored. */
int tensor_division_begin_file(struct safetensors_writer *writer,
                               const struct tensor_division *division, int file,
                               const char *directory, struct error *error);
int tensor_division_end_file(struct stored_file *stored, struct safetensors_writer *writer,
                             const struct tensor_division *division, int file, struct error *error);

/* Writes the index of several files, and appends it to *files. */
int tensor_division_write_index(const struct tensor_division *division, const char *directory,
                                struct stored_file **files, struct error *error);

enum { TENSOR_PIECE_BYTES = 1 << 18 };

/* The data of tensors: read stores bytes first .. first + bytes - 1 of an entry in buffer, at most
 * TENSOR_PIECE_BYTES of them, and returns 0, or -1 with a message. */
struct tensor_source {
    int (*read)(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                struct error *error);
    void *context;
};

/* Writes all files, each durably, and the index if there are several. What is written is appended
 * to *files, an stb_ds array. Fails as safetensors_write_begin does, if the source fails, and when
 * there would be more files than tensor_files.h reads. Files that were finished stay. */
int tensor_shards_write(const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        const struct tensor_source *source, struct stored_file **files,
                        struct error *error);
