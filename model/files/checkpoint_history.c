#include "model/files/checkpoint_history.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/safetensors_write.h"

const char checkpoint_history_name[] = "fp8.safetensors";

static const char tensor_name[] = "amax_history";

int checkpoint_write_history(const struct quantization *quantization, const char *path,
                             uint64_t *bytes, char sha256[SHA256_HEX_MAX], struct error *error) {
    const struct quantization *q = quantization;
    int64_t count = quantization_count(q);
    size_t size = (size_t)(q->history_length * count) * sizeof(float);
    struct safetensors_entry entry = {.name = tensor_name,
                                      .dtype = SAFETENSORS_F32,
                                      .rank = 2,
                                      .shape = {(uint64_t)q->history_length, (uint64_t)count}};
    struct safetensors_writer writer;
    float *history = malloc(size);
    if (!history) return fail(error, "out of memory while writing %.400s", path);
    backend_download(q->be, history, q->history, size);
    int status = safetensors_write_begin(&writer, path, &entry, 1, error);
    if (status == 0) status = safetensors_write_data(&writer, history, size, error);
    if (status == 0) status = safetensors_write_end(&writer, error);
    free(history);
    if (status) return -1;
    *bytes = writer.file.size;
    memcpy(sha256, writer.file.hex, SHA256_HEX_MAX);
    return 0;
}

/* Rows of the last steps, to their places in a history of another length. */
static int restore(const struct quantization *q, const struct safetensors_entry *entry,
                   int64_t step, struct error *error) {
    int64_t count = quantization_count(q), saved = (int64_t)entry->shape[0];
    size_t row = (size_t)count * sizeof(float);
    float *history = calloc((size_t)(q->history_length + 1) * (size_t)count, sizeof *history);
    if (!history) return fail(error, "out of memory for the history of fp8");
    float *amax = history + q->history_length * count;
    for (int64_t at = step - 1; at >= 0 && at >= step - saved && at >= step - q->history_length;
         at--)
        memcpy(history + at % q->history_length * count,
               (const char *)entry->data + (size_t)(at % saved) * row, row);
    for (int64_t i = 0; i < q->history_length * count; i++)
        if (history[i] > amax[i % count]) amax[i % count] = history[i];
    for (int64_t i = 0; i < count; i++) amax[i] *= q->margin;
    backend_upload(q->be, q->history, history, (size_t)q->history_length * row);
    backend_upload(q->be, q->amax, amax, row);
    free(history);
    return 0;
}

int checkpoint_read_history(const struct quantization *quantization, const char *directory,
                            int64_t step, struct error *error) {
    const struct quantization *q = quantization;
    struct safetensors file;
    char path[FILE_PATH_MAX];
    if (q->history_length == 0) return 0;
    if (file_path_join(path, directory, checkpoint_history_name, error)) return -1;
    if (!file_exists(path)) return 0;
    if (safetensors_open(&file, path, error)) return -1;
    const struct safetensors_entry *entry = &file.entries[0];
    bool fits = file.count == 1 && strcmp(entry->name, tensor_name) == 0 &&
                entry->dtype == SAFETENSORS_F32 && entry->rank == 2 && entry->shape[0] > 0 &&
                entry->shape[1] == (uint64_t)quantization_count(q);
    int status = fits ? restore(q, entry, step, error)
                      : fail(error, "%.400s: not the history of this model's linear layers", path);
    safetensors_close(&file);
    return status;
}
