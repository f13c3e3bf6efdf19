/* Writes safetensors files, with the data in pieces. */
#pragma once

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/safetensors.h"

struct safetensors_writer {
    struct file_writer file; /* its size and hex describe the file after safetensors_write_end */
    uint64_t announced;      /* bytes of data that the header promises */
    uint64_t received;
};

/* Starts a file with the given tensors, in the given order (name, dtype, rank and shape count; wide
 * dtypes first keeps all data aligned). The metadata are {"format": "pt"}, which Hugging Face
 * transformers requires. Fails on names that repeat, are reserved ("__metadata__") or not UTF-8, on
 * sizes that do not fit in 2^53 bytes or in whole bytes, and as file_writer_open does. After a
 * failure of this function or the next two, safetensors_write_abandon is not needed. */
int safetensors_write_begin(struct safetensors_writer *writer, const char *path,
                            const struct safetensors_entry *entries, int count,
                            struct error *error);

/* Appends to the data of all tensors, which are contiguous. Pieces may have any size. */
int safetensors_write_data(struct safetensors_writer *writer, const void *bytes, size_t size,
                           struct error *error);

/* Makes the file durable under its name. Fails if less data was written than announced. */
int safetensors_write_end(struct safetensors_writer *writer, struct error *error);

/* Removes the unfinished file. An earlier file of that name is unchanged. Does nothing if the
 * writer is not open. */
void safetensors_write_abandon(struct safetensors_writer *writer);
