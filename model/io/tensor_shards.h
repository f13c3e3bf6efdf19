/* Writes the tensors of a model to one safetensors file, or to several (shards) listed in an index,
 * as Hugging Face's save_pretrained does. tensor_files.h reads them.
 *
 *     DIRECTORY/STEM.safetensors                      where all data fit into limit bytes; else
 *     DIRECTORY/STEM-00001-of-00003.safetensors ...   as many tensors as fit, in the given order
 *     DIRECTORY/STEM.safetensors.index.json           {"metadata": {"total_size": bytes of all
 *                                                     data}, "weight_map": {tensor: file, ...}}
 *
 * Tensors are not split: one of more than limit bytes has its own file. Each file is made durable
 * separately, the index last. They appear together only if their directory is renamed
 * afterwards. */
#pragma once

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "model/io/safetensors.h"

enum { STORED_FILE_NAME_MAX = 64 };

/* A file that was written. */
struct stored_file {
    char name[STORED_FILE_NAME_MAX]; /* without the directory */
    uint64_t bytes;
    char sha256[SHA256_HEX_MAX];
};

/* Division of tensors among files. */
struct tensor_division {
    const char *stem;
    const struct safetensors_entry *entries; /* [count], owned by the caller */
    int count;
    int *ends; /* stb_ds array: for each file the index after its last entry */
};

/* Divides tensors among files: each has as many as fit in limit bytes, at least one. With `files` >
 * 1 there are that many files of about the same size, or a multiple if the average would exceed the
 * limit, but at most one per tensor; a file may exceed the average by one tensor. Fails if there
 * would be more files than tensor_files.h reads; closing is then harmless. */
int tensor_division_open(struct tensor_division *division, const char *stem,
                         const struct safetensors_entry *entries, int count, uint64_t limit,
                         int files, struct error *error);
void tensor_division_close(struct tensor_division *division);

/* Writes the name of a file (counted from 0): "STEM.safetensors", or
 * "STEM-00002-of-00003.safetensors" if there are several. */
void tensor_division_name(char name[STORED_FILE_NAME_MAX], const struct tensor_division *division,
                          int file);

/* Begin one of the files in a directory; end it, and store its name, size and hash in *stored. */
int tensor_division_begin_file(struct safetensors_writer *writer,
                               const struct tensor_division *division, int file,
                               const char *directory, struct error *error);
int tensor_division_end_file(struct stored_file *stored, struct safetensors_writer *writer,
                             const struct tensor_division *division, int file, struct error *error);

/* Writes the index of several files, and appends it to *files. */
int tensor_division_write_index(const struct tensor_division *division, const char *directory,
                                struct stored_file **files, struct error *error);

enum { TENSOR_PIECE_BYTES = 1 << 18 };

/* Source of tensor data. read stores bytes first .. first + bytes - 1 of an entry in buffer, at
 * most TENSOR_PIECE_BYTES, and returns 0, or -1 with a message. */
struct tensor_source {
    int (*read)(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                struct error *error);
    void *context;
};

/* Writes all files durably, and the index if there are several. Appends them to *files, an stb_ds
 * array. Fails like safetensors_write_begin, if the source fails, and if there would be more files
 * than tensor_files.h reads. Finished files are not removed. */
int tensor_shards_write(const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        const struct tensor_source *source, struct stored_file **files,
                        struct error *error);
