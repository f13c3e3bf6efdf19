/* Checks that every tensor that a reader lists can be read in full. */
#pragma once

#include "test/fuzz/fuzz.h"
#include "test/safetensors_find.h"

static inline void fuzz_read(const struct safetensors *file,
                             const struct safetensors_entry *entry) {
    void *data = safetensors_data(file, entry);
    require(data != NULL);
    free(data);
}
