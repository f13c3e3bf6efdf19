#include "model/io/amax_history.h"

#include <math.h>
#include <string.h>
#include "data/util/min_max.h"

static const char tensor_name[] = "amax_history";

static int read_history(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                        struct error *error) {
    (void)entry, (void)error;
    memcpy(buffer, (const char *)context + first, bytes);
    return 0;
}

int amax_history_write(const float *history, int64_t length, int64_t count, const char *directory,
                       struct stored_file **files, struct error *error) {
    const struct safetensors_entry entry = {.name = tensor_name,
                                            .dtype = SAFETENSORS_F32,
                                            .rank = 2,
                                            .shape = {(uint64_t)length, (uint64_t)count}};
    const struct tensor_source source = {read_history, (void *)history};
    return tensor_shards_write(directory, "fp8", &entry, 1, UINT64_MAX, &source, files, error);
}

int amax_history_read(float *history, int64_t length, int64_t count, const char *path, int64_t step,
                      struct error *error) {
    struct safetensors file;
    if (safetensors_open(&file, path, error)) return -1;
    const struct safetensors_entry *entry = &file.entries[0];
    int status = 0;
    if (file.count != 1 || strcmp(entry->name, tensor_name) != 0 ||
        entry->dtype != SAFETENSORS_F32 || entry->rank != 2 || entry->shape[0] == 0 ||
        entry->shape[1] != (uint64_t)count)
        status = fail(error, "%.400s: not the history of this model's linear layers", path);
    memset(history, 0, (size_t)(length * count) * sizeof *history);
    int64_t saved = status ? 0 : (int64_t)entry->shape[0];
    int64_t last = MIN(saved, length);
    size_t row = (size_t)count * sizeof *history;
    for (int64_t at = step - 1; status == 0 && at >= 0 && at >= step - last; at--)
        status = safetensors_read(history + at % length * count, &file, entry,
                                  (uint64_t)(at % saved) * row, row, error);
    for (int64_t i = 0; i < length * count && status == 0; i++)
        if (!(history[i] >= 0 && isfinite(history[i])))
            status =
                fail(error, "%.400s: %g is not the magnitude of a value", path, (double)history[i]);
    safetensors_close(&file);
    return status;
}
