/* The weights of a model as Hugging Face keeps them: named tensors in one safetensors file, or in
 * several (shards) that an index names.
 *
 *     DIRECTORY/STEM.safetensors               is taken if it is there; else
 *     DIRECTORY/STEM.safetensors.index.json    {"weight_map": {"wte.weight":
 *     DIRECTORY/STEM-00001-of-00002...                 "STEM-00001-of-00002.safetensors", ...}}
 *
 * Shards lie beside their index: a name in it that leads elsewhere is refused. */
#pragma once

#include "data/util/error.h"
#include "model/io/safetensors.h"

enum { TENSOR_FILES_MAX = 1000 };

struct tensor_file {
    char *path;
    struct safetensors safetensors;
};

struct tensor_place {
    const struct safetensors_entry *entry;
    const struct tensor_file *file; /* that holds it, for messages */
};

struct tensor_files {
    int count;                   /* of tensors */
    struct tensor_place *places; /* [count], sorted by name */
    int file_count;
    struct tensor_file *files; /* [file_count] */
    char *where; /* path of the file, or of the index: for messages about what is in none */
};

/* Opens one safetensors file. After a failure of this or of the next there is nothing to close,
 * though closing is harmless. */
int tensor_files_open(struct tensor_files *files, const char *path, struct error *error);

/* Opens the tensors of that stem in a directory; the weights of a model have "model". Fails when
 * there are none (and says so of weights in PyTorch's own format), when index and shards contradict
 * each other, when a tensor is in two shards, and when any of the files is damaged. A tensor that
 * the index does not mention is found all the same, and "total_size" is not looked at, as in
 * transformers. */
int tensor_files_open_directory(struct tensor_files *files, const char *directory, const char *stem,
                                struct error *error);

/* The tensor of that name, or NULL. */
const struct tensor_place *tensor_files_find(const struct tensor_files *files, const char *name);

/* Reads bytes first .. first + size - 1 of a tensor, as safetensors_read does. */
int tensor_place_read(void *to, const struct tensor_place *place, uint64_t first, size_t size,
                      struct error *error);

void tensor_files_close(struct tensor_files *files);
