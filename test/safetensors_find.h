/* Looks a tensor of a file up by its name. */
#pragma once

#include <string.h>

#include "model/files/safetensors.h"

static inline const struct safetensors_entry *safetensors_find(const struct safetensors *file,
                                                               const char *name) {
    for (int i = 0; i < file->count; i++)
        if (strcmp(file->entries[i].name, name) == 0) return &file->entries[i];
    return NULL;
}
