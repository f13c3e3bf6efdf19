/* The GGUF file format of llama.cpp: key-value pairs, then named tensors.
 *
 * A file is the magic "GGUF", version 3 (uint32), the numbers of tensors and of pairs (uint64), the
 * pairs, the infos of the tensors, and their data. A text is its length (uint64) and its bytes. A
 * pair is a key, the type of its value (uint32), and the value; an array is the type and number of
 * its items, then the items. An info is a name, the number of dimensions (uint32), the dimensions
 * with the contiguous one first (uint64), the type (uint32), and the offset in the data (uint64).
 * The data section and each tensor begin at a multiple of GGUF_ALIGNMENT; zeros fill the gaps.
 * Everything is little-endian. Source: docs/gguf.md of ggml-org/ggml.
 *
 * The writer collects pairs and infos in memory; begin writes them, and the data follow, tensor by
 * tensor. Running out of memory ends the program. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/gguf_types.h"

enum { GGUF_ALIGNMENT = 32 };

/* Types of values, with their numbers in the file. */
enum gguf_value {
    GGUF_UINT32 = 4,
    GGUF_INT32 = 5,
    GGUF_FLOAT32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
};

/* Zero-initialized when empty. */
struct gguf_writer {
    uint8_t *pairs, *infos; /* stb_ds arrays of bytes */
    uint64_t pair_count, tensor_count;
    uint64_t announced; /* bytes of data, gaps included */
    uint64_t data_start;
    struct file_writer file;
};

/* Add a pair: a number or, for GGUF_BOOL, 0 or 1; or a text. Keys must differ. */
void gguf_put_number(struct gguf_writer *writer, const char *key, enum gguf_value type,
                     double value);
void gguf_put_string(struct gguf_writer *writer, const char *key, const char *text);

/* Begins an array of `count` items, each of which one of the next two functions adds: a number of
 * the array's type, or a text of `size` bytes to an array of GGUF_STRING. */
void gguf_put_array(struct gguf_writer *writer, const char *key, enum gguf_value type,
                    uint64_t count);
void gguf_add_number(struct gguf_writer *writer, enum gguf_value type, double value);
void gguf_add_text(struct gguf_writer *writer, const void *text, size_t size);

/* Adds a tensor, [rows, columns] in the order of memory; rows 0: a vector. Rows are whole blocks of
 * the type. */
void gguf_add_tensor(struct gguf_writer *writer, const char *name, enum gguf_type type,
                     uint64_t rows, uint64_t columns);

/* Opens the file, which appears under its name when gguf_write_end succeeds, and writes everything
 * but the data. Fails like file_writer_open. After a failure of this function or the next two,
 * gguf_writer_close removes what was written. */
int gguf_refuse_existing(const char *path, struct error *error); /* fails if the file exists */
int gguf_write_begin(struct gguf_writer *writer, const char *path, struct error *error);

/* Appends to the data. Pieces may have any size; end_tensor follows the last one of each tensor. */
int gguf_write_data(struct gguf_writer *writer, const void *bytes, size_t size,
                    struct error *error);
int gguf_write_end_tensor(struct gguf_writer *writer, struct error *error);

/* Makes the file durable under its name. All announced data must have been written. */
int gguf_write_end(struct gguf_writer *writer, struct error *error);

/* Frees the writer, and removes an unfinished file. */
void gguf_writer_close(struct gguf_writer *writer);
