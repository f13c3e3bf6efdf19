/* Finds a tensor of a file by name, reads all of it, and writes small files. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "model/io/safetensors.h"

static inline const struct safetensors_entry *safetensors_find(const struct safetensors *file,
                                                               const char *name) {
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->entries[i].name, name) == 0) return &file->entries[i];
    return NULL;
}

/* Returns the data of a tensor, to be freed; NULL if it cannot be read. */
static inline void *safetensors_data(const struct safetensors *file,
                                     const struct safetensors_entry *entry) {
    struct error failure;
    void *data = malloc(entry->bytes + 1);
    if (data && safetensors_read(data, file, entry, 0, entry->bytes, &failure) == 0) return data;
    free(data);
    return NULL;
}

/* True if the tensor holds these values. */
static inline bool safetensors_holds(const struct safetensors *file,
                                     const struct safetensors_entry *entry, const void *bytes) {
    void *data = safetensors_data(file, entry);
    bool same = data && memcmp(data, bytes, entry->bytes) == 0;
    free(data);
    return same;
}

/* Writes a file of tensors, whose data follow each other. */
static inline int safetensors_put(const char *path, const struct safetensors_entry *entries,
                                  int count, const void *data, size_t size, struct error *reason) {
    struct safetensors_writer writer;
    return safetensors_write_begin(&writer, path, entries, count, reason) ||
                   safetensors_write_data(&writer, data, size, reason) ||
                   safetensors_write_end(&writer, reason)
               ? -1
               : 0;
}
