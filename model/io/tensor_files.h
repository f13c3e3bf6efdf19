/* Weights of a model in Hugging Face's layout: named tensors in one safetensors file, or in several
 * (shards) listed in an index.
 *
 *     DIRECTORY/STEM.safetensors               is taken if it is there; else
 *     DIRECTORY/STEM.safetensors.index.json    {"weight_map": {"wte.weight":
 *     DIRECTORY/STEM-00001-of-00002...                 "STEM-00001-of-00002.safetensors", ...}}
 *
 * Shards are in the directory of their index; names that lead elsewhere are rejected. */
#pragma once

#include "data/util/error.h"
#include "model/io/safetensors.h"

enum { TENSOR_FILES_MAX = 1000 };

struct tensor_place {
    const struct safetensors_entry *entry;
    const struct safetensors *file; /* file with the tensor */
};

struct tensor_files {
    int count;                   /* number of tensors */
    struct tensor_place *places; /* [count], sorted by name */
    struct safetensors *files;   /* stb_ds array */
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
const struct tensor_place *tensor_files_find(const struct tensor_files *files, const char *name);

void tensor_files_close(struct tensor_files *files);
