#include "test/kernels/golden.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "data/util/error.h"
#include "model/io/safetensors.h"
#include "test/safetensors_find.h"

/* Tests run in the root directory. */
static struct safetensors_entry find(struct safetensors *file, const char *name) {
    const char *colon = strchr(name, ':');
    struct error error;
    char path[128];
    snprintf(path, sizeof path, "test/golden/%.*s.safetensors", colon ? (int)(colon - name) : 3,
             colon ? name : "ops");
    if (colon) name = colon + 1;
    cr_assert(safetensors_open(file, path, &error) == 0, "%s", error.text);
    const struct safetensors_entry *entry = safetensors_find(file, name);
    cr_assert(entry, "no %s in %s", name, path);
    return *entry;
}

static enum dtype dtype_of(const struct safetensors_entry *entry) {
    cr_assert(entry->dtype == SAFETENSORS_F32 || entry->dtype == SAFETENSORS_BF16);
    return entry->dtype == SAFETENSORS_F32 ? DTYPE_F32 : DTYPE_BF16;
}

/* rows x columns; columns 0 for rank 1. */
static int64_t count_of(const struct safetensors_entry *entry, int64_t *columns) {
    int64_t count = (int64_t)(entry->bytes / dtype_bytes(dtype_of(entry)));
    if (columns) *columns = entry->rank > 1 ? (int64_t)entry->shape[entry->rank - 1] : 0;
    return count;
}

double *golden_values(struct check *c, const char *name) {
    struct safetensors file;
    struct safetensors_entry entry = find(&file, name);
    int64_t count = count_of(&entry, NULL);
    double *values = check_doubles(c, count);
    void *stored = safetensors_data(&file, &entry);
    cr_assert_not_null(stored);
    for (int64_t i = 0; i < count; i++) {
        float buffer;
        values[i] = *dtype_widen(&buffer, stored, dtype_of(&entry), (size_t)i, 1);
    }
    free(stored);
    safetensors_close(&file);
    return values;
}

struct tensor golden_tensor(struct check *c, enum check_use use, const char *name) {
    struct safetensors file;
    struct safetensors_entry entry = find(&file, name);
    int64_t columns, count = count_of(&entry, &columns);
    safetensors_close(&file);
    return check_tensor(c, use, dtype_of(&entry), columns ? count / columns : count, columns,
                        golden_values(c, name));
}

const int32_t *golden_tokens(struct check *c, const char *name, const int32_t **host) {
    struct safetensors file;
    struct safetensors_entry entry = find(&file, name);
    cr_assert_eq(entry.dtype, SAFETENSORS_I32);
    int32_t *tokens = (int32_t *)(void *)check_doubles(c, (int64_t)(entry.bytes / sizeof *tokens));
    struct error error;
    cr_assert_eq(safetensors_read(tokens, &file, &entry, 0, entry.bytes, &error), 0);
    safetensors_close(&file);
    if (host) *host = tokens;
    return check_memory(c, CHECK_READ, tokens, entry.bytes);
}

void golden_close(struct check *c, const char *kind, const struct tensor *got, const char *name,
                  const double *magnitude) {
    check_close(c, kind, got, golden_values(c, name), magnitude);
}
