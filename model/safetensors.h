/* The safetensors file format: named tensors behind a JSON header.
 *
 * A file is an unsigned 64-bit little-endian length N; N bytes of JSON, {"name": {"dtype": "F32",
 * "shape": [2, 3], "data_offsets": [begin, end]}, ...}, padded with spaces; then the tensors,
 * little endian, in C order, without holes. Offsets count from the end of the header. The optional
 * key
 * "__metadata__" maps strings to strings. Source: the format section of the README of
 * huggingface/safetensors, and the checks of its reader.
 *
 * This host is taken to be little-endian, as every machine with an x86 or ARM system is. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "data/files.h"

enum { SAFETENSORS_RANK_MAX = 8, SAFETENSORS_HEADER_MAX_BYTES = 100000000 };

enum safetensors_dtype {
    SAFETENSORS_BOOL,
    SAFETENSORS_F4,
    SAFETENSORS_F6_E2M3,
    SAFETENSORS_F6_E3M2,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F32,
    SAFETENSORS_C64,
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
    SAFETENSORS_DTYPES /* how many there are */
};

/* The name in the file, such as "F32", and the bits of one element. */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
int safetensors_dtype_bits(enum safetensors_dtype dtype);

struct safetensors_entry {
    const char *name;
    enum safetensors_dtype dtype;
    int rank; /* 0 for a scalar, at most SAFETENSORS_RANK_MAX */
    uint64_t shape[SAFETENSORS_RANK_MAX];
    /* Found by the reader, ignored by the writer. */
    uint64_t offset;  /* bytes from the start of the data section */
    uint64_t bytes;   /* size of the data */
    const void *data; /* mapped, read-only; files of others may align it to one byte only: memcpy */
};

struct cJSON;

struct safetensors {
    int count;
    struct safetensors_entry *entries;        /* in the order of the data */
    const struct safetensors_entry **by_name; /* the same, sorted by name */
    const struct cJSON *metadata;             /* NULL when the file has none */
    struct cJSON *header;                     /* owns the names */
    void *map;
    uint64_t map_bytes;
};

/* Maps a file and checks its whole header: entries cover the data exactly, in known dtypes, with
 * sizes that fit their shapes. The values themselves are not looked at. Names, data and metadata
 * stay valid until the close. Fails on anything that the format does not allow, on more than
 * SAFETENSORS_RANK_MAX dimensions, and when the file cannot be read; then there is nothing to
 * close, though closing is harmless. The file may not be cut short while it is open. */
int safetensors_open(struct safetensors *file, const char *path, char *error);

/* The tensor of that name, or NULL. Any number of threads may ask at once. */
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name);

/* The value of a metadata key, or NULL. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

/* Also takes a struct filled with zeros or one closed before. */
void safetensors_close(struct safetensors *file);

struct safetensors_pair {
    const char *key;
    const char *value;
};

struct safetensors_writer {
    struct file_writer file; /* its size and hex describe the file after safetensors_write_end */
    uint64_t announced;      /* bytes of data that the header promises */
    uint64_t received;
};

/* Starts a file with the given tensors, in the given order (name, dtype, rank and shape count; wide
 * dtypes first keeps all data aligned). The metadata are {"format": "pt"}, which Hugging Face
 * transformers requires, followed by `pairs`. Fails on names or keys that repeat or are reserved
 * ("__metadata__", "format"), on text that is not UTF-8, on sizes that do not fit in 2^53 bytes or
 * in whole bytes, and as file_writer_open does. After a failure of this or of the following two
 * nothing is left to abandon. */
int safetensors_write_begin(struct safetensors_writer *writer, const char *path,
                            const struct safetensors_entry *entries, int count,
                            const struct safetensors_pair *pairs, int pair_count, char *error);

/* Appends to the data of all tensors, which follow each other; the pieces may have any size. */
int safetensors_write_data(struct safetensors_writer *writer, const void *bytes, size_t size,
                           char *error);

/* Makes the file durable under its name. Fails when less was written than announced. */
int safetensors_write_end(struct safetensors_writer *writer, char *error);

/* Gives up: removes what was written; the file that had this name before stays. Nothing happens
 * when the writer is not open. */
void safetensors_write_abandon(struct safetensors_writer *writer);

#endif
