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
#ifndef MODEL_FILES_SAFETENSORS_H
#define MODEL_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "data/base/error.h"
#include "model/files/safetensors_format.h"

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
int safetensors_open(struct safetensors *file, const char *path, struct error *error);

/* The tensor of that name, or NULL. Any number of threads may ask at once. */
const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name);

/* The value of a metadata key, or NULL. */
const char *safetensors_metadata(const struct safetensors *file, const char *key);

/* Also takes a struct filled with zeros or one closed before. */
void safetensors_close(struct safetensors *file);

#endif
