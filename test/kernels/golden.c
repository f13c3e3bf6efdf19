#include "test/kernels/golden.h"

#include <criterion/criterion.h>
#include <string.h>

#include "data/util/error.h"
#include "model/io/safetensors.h"
#include "test/safetensors_find.h"

static const char path[] = "test/golden/ops.safetensors"; /* tests run in the root directory */

static struct safetensors_entry find(struct safetensors *file, const char *name,
                                     enum safetensors_dtype dtype) {
    struct error error;
    cr_assert(safetensors_open(file, path, &error) == 0, "%s", error.text);
    const struct safetensors_entry *entry = safetensors_find(file, name);
    cr_assert(entry && entry->dtype == dtype, "no %s in %s", name, path);
    return *entry;
}

/* rows x columns; columns 0 for rank 1. */
static int64_t count_of(const struct safetensors_entry *entry, int64_t *columns) {
    int64_t count = (int64_t)(entry->bytes / 4);
    if (columns) *columns = entry->rank > 1 ? (int64_t)entry->shape[entry->rank - 1] : 0;
    return count;
}

double *golden_values(struct check *c, const char *name) {
    struct safetensors file;
    struct safetensors_entry entry = find(&file, name, SAFETENSORS_F32);
    int64_t count = count_of(&entry, NULL);
    double *values = check_doubles(c, count);
    float *stored = safetensors_data(&file, &entry);
    cr_assert_not_null(stored);
    for (int64_t i = 0; i < count; i++) values[i] = stored[i];
    free(stored);
    safetensors_close(&file);
    return values;
}

struct tensor golden_tensor(struct check *c, enum check_use use, const char *name) {
    struct safetensors file;
    struct safetensors_entry entry = find(&file, name, SAFETENSORS_F32);
    int64_t columns, count = count_of(&entry, &columns);
    safetensors_close(&file);
    return check_tensor(c, use, DTYPE_F32, columns ? count / columns : count, columns,
                        golden_values(c, name));
}

const int32_t *golden_tokens(struct check *c, const char *name, const int32_t **host) {
    struct safetensors file;
    struct safetensors_entry entry = find(&file, name, SAFETENSORS_I32);
    int32_t *tokens = (int32_t *)(void *)check_doubles(c, count_of(&entry, NULL));
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
