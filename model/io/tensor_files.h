/* Weights of a model in Hugging Face's layout: named tensors in one safetensors file, or in several
 * (shards) listed in an index.
 *
 *     DIRECTORY/STEM.safetensors                      is read if it is there; else
 *     DIRECTORY/STEM.safetensors.index.json           {"metadata": {"total_size": bytes of all
 *                                                     data}, "weight_map": {tensor: file, ...}}
 *     DIRECTORY/STEM-00001-of-00003.safetensors ...
 *
 * Shards are in the directory of their index; names that lead elsewhere are rejected. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "data/util/sha256.h"
#include "model/io/safetensors.h"

enum { TENSOR_FILES_MAX = 1000 };

struct quantized_tensor;

struct stored_tensor {
    const struct safetensors_entry *entry;
    const struct safetensors *file; /* file with the tensor */
    /* NULL, or how to compute the values of the entry (model/io/quantized_tensors.h). */
    const struct quantized_tensor *quantized;
};

struct tensor_files {
    int count;                     /* number of tensors */
    struct stored_tensor *tensors; /* [count], sorted by name */
    int stored_count;
    struct stored_tensor *stored;       /* the same, or before quantized weights replaced some */
    struct quantized_tensor *quantized; /* optional, freed with the files */
    struct safetensors *files;          /* stb_ds array */
    char *where; /* path of the file, or of the index, for messages about missing tensors */
};

/* Opens the tensors of a stem in a directory; "model" is the stem of weights. Fails if there are
 * none (the message mentions weights in PyTorch's own format), if index and shards disagree, if a
 * tensor is in two shards, or if a file is damaged. As in transformers, tensors that the index does
 * not list are included, and "total_size" is ignored. After a failure closing is not required, but
 * harmless. */
int tensor_files_open_directory(struct tensor_files *files, const char *directory, const char *stem,
                                struct error *error);

/* Returns the tensor of that name, or NULL. */
const struct stored_tensor *tensor_files_find(const struct tensor_files *files, const char *name);

/* Stores a SHA-256 of the names, dtypes, shapes and data of all stored tensors, which threads hash
 * in parallel: a second pass over the files, from the page cache where they fit into it. */
int tensor_files_fingerprint(char hex[SHA256_HEX_MAX], const struct tensor_files *files,
                             struct error *error);

void tensor_files_close(struct tensor_files *files);

/* ---- writing
 *
 * One file if all data fit into a limit of bytes; otherwise each file has as many tensors as fit,
 * in the given order, as save_pretrained does. Tensors are not split: one that exceeds the limit
 * has its own file. Each file is made durable separately, the index last. They appear together only
 * if their directory is renamed afterwards. */

enum { STORED_FILE_NAME_MAX = 64 };

/* A file that was written. */
struct stored_file {
    char name[STORED_FILE_NAME_MAX]; /* without the directory */
    uint64_t bytes;
    char sha256[SHA256_HEX_MAX];
};

/* Writes a file of a directory durably, and appends it to *files, an stb_ds array. */
int stored_file_write(struct stored_file **files, const char *directory, const char *name,
                      const void *bytes, size_t size, struct error *error);

/* The same for a text that `print` prints. */
int stored_file_print(struct stored_file **files, const char *directory, const char *name,
                      void (*print)(FILE *out, const void *context), const void *context,
                      struct error *error);

/* Division of tensors among files. */
struct tensor_division {
    const char *stem;
    const struct safetensors_entry *entries; /* [count], owned by the caller */
    int count;
    int *ends; /* stb_ds array: for each file the index after its last entry */
};

/* Divides tensors among files of at most limit bytes. With `files` > 1 there are that many files of
 * about the same size, or a multiple if the average would exceed the limit, but at most one per
 * tensor; a file may exceed the average by one tensor. Fails if there would be more files than
 * TENSOR_FILES_MAX; closing is then harmless. */
int tensor_division_open(struct tensor_division *division, const char *stem,
                         const struct safetensors_entry *entries, int count, uint64_t limit,
                         int files, struct error *error);
void tensor_division_close(struct tensor_division *division);

/* Begin one of the files (counted from 0) in a directory; end it, and store its name, size and hash
 * in *stored. */
int tensor_division_begin_file(struct safetensors_writer *writer,
                               const struct tensor_division *division, int file,
                               const char *directory, struct error *error);
int tensor_division_end_file(struct stored_file *stored, struct safetensors_writer *writer,
                             const struct tensor_division *division, int file, struct error *error);

/* Writes the index, if there are several files, and appends it to *files. */
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
 * than TENSOR_FILES_MAX. Finished files are not removed. */
int tensor_shards_write(const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        const struct tensor_source *source, struct stored_file **files,
                        struct error *error);
