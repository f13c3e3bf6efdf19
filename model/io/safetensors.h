/* The safetensors file format: named tensors behind a JSON header.
 *
 * A file is an unsigned 64-bit little-endian length N; N bytes of JSON, {"name": {"dtype": "F32",
 * "shape": [2, 3], "data_offsets": [begin, end]}, ...}, padded with spaces; then the tensors,
 * little endian, in C order, without holes. Offsets count from the end of the header. The optional
 * key "__metadata__" maps strings to strings. Source: the format section of the README of
 * huggingface/safetensors, and the checks of its reader.
 *
 * The host is assumed to be little-endian, like all x86 and common ARM systems. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/file_reader.h"
#include "data/util/files.h"

struct cJSON;

enum {
    SAFETENSORS_RANK_MAX = 8,
    SAFETENSORS_HEADER_MAX_BYTES = 100000000,
    /* Values in a header, 8 for a matrix: some 130,000 tensors, in about 120 MB while reading. */
    SAFETENSORS_VALUES_MAX = 1 << 20,
};

/* X(NAME in the file, bits of an element), grouped by width. */
#define SAFETENSORS_DTYPES(X) \
    X(BOOL, 8)                \
    X(F4, 4)                  \
    X(F6_E2M3, 6)             \
    X(F6_E3M2, 6)             \
    X(U8, 8)                  \
    X(I8, 8)                  \
    X(F8_E5M2, 8)             \
    X(F8_E4M3, 8)             \
    X(F8_E8M0, 8)             \
    X(I16, 16)                \
    X(U16, 16)                \
    X(F16, 16)                \
    X(BF16, 16) X(I32, 32) X(U32, 32) X(F32, 32) X(C64, 64) X(F64, 64) X(I64, 64) X(U64, 64)

enum safetensors_dtype {
#define X(NAME, bits) SAFETENSORS_##NAME,
    SAFETENSORS_DTYPES(X)
#undef X
        SAFETENSORS_DTYPE_COUNT
};

/* Returns the name in the file, such as "F32". */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);

struct safetensors_entry {
    const char *name;
    enum safetensors_dtype dtype;
    int rank; /* 0 for a scalar, at most SAFETENSORS_RANK_MAX */
    uint64_t shape[SAFETENSORS_RANK_MAX];
    /* Set by the reader, ignored by the writer. */
    uint64_t offset; /* bytes from the start of the data section */
    uint64_t bytes;  /* size of the data */
};

struct safetensors {
    int count;
    struct safetensors_entry *entries; /* in the order of the data */
    struct cJSON *header;              /* owns the names */
    struct file_reader reader;
    uint64_t data_start; /* offset in the file, in bytes */
};

/* Opens a file and checks its whole header: entries cover the data exactly, in known dtypes, with
 * sizes that fit their shapes. Values are not checked. Names are valid until the file is closed.
 * Fails on violations of the format, on more dimensions or values in the header than the limits,
 * and if the file cannot be read. Closing is not required after a failure, but harmless. */
int safetensors_open(struct safetensors *file, const char *path, struct error *error);

/* Reads bytes first .. first + size - 1 of an entry's data. Thread-safe. Fails if the file was
 * truncated after opening, or on a read error. */
int safetensors_read(void *to, const struct safetensors *file,
                     const struct safetensors_entry *entry, uint64_t first, size_t size,
                     struct error *error);

/* Closes a file. A zero-filled or already closed struct is accepted. */
void safetensors_close(struct safetensors *file);

/* Stores the size of the entry's data. Returns false if it overflows or is not a whole number of
 * bytes. */
bool safetensors_entry_bytes(uint64_t *bytes, const struct safetensors_entry *entry);

/* Writes a file, with the data in pieces. */
struct safetensors_writer {
    struct file_writer file; /* its size and hex describe the file after safetensors_write_end */
    uint64_t announced;      /* bytes of data that the header announces */
    uint64_t received;       /* bytes of data so far */
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
