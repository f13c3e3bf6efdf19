#include "model/files/safetensors_format.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int bits;
} dtypes[] = {
#define X(NAME, bits) {#NAME, bits},
    SAFETENSORS_DTYPES(X)
#undef X
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype) {
    return dtypes[dtype].name;
}

int safetensors_dtype_bits(enum safetensors_dtype dtype) {
    return dtypes[dtype].bits;
}

bool safetensors_entry_bytes(uint64_t *bytes, const struct safetensors_entry *entry) {
    uint64_t bits = 1;
    for (int i = 0; i < entry->rank; i++) {
        if (__builtin_mul_overflow(bits, entry->shape[i], &bits)) return false;
    }
    if (__builtin_mul_overflow(bits, (uint64_t)dtypes[entry->dtype].bits, &bits)) return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

int safetensors_out_of_memory(struct error *error, const char *path) {
    return fail(error, "out of memory for the header of %.480s\nfree memory and try again", path);
}

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

const char *safetensors_repeated(const char **texts, size_t count) {
    if (count > 1) qsort(texts, count, sizeof(*texts), compare_text);
    for (size_t i = 1; i < count; i++) {
        if (strcmp(texts[i - 1], texts[i]) == 0) return texts[i];
    }
    return NULL;
}
