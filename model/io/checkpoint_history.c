#include "model/io/checkpoint_history.h"

#include <stdlib.h>

#include "model/io/amax_history.h"

const char checkpoint_history_name[] = "fp8.safetensors";

int checkpoint_write_history(const struct quantization *quantization, const float *copy,
                             const char *path, uint64_t *bytes, char sha256[SHA256_HEX_MAX],
                             struct error *error) {
    const struct quantization *q = quantization;
    int64_t count = quantization_count(q);
    size_t size = (size_t)(q->history_length * count) * sizeof(float);
    float *history = copy ? NULL : malloc(size);
    if (!copy && !history) return fail(error, "out of memory while writing %.400s", path);
    if (history) backend_download(q->be, history, q->history, size);
    int status = amax_history_write(copy ? copy : history, q->history_length, count, path, bytes,
                                    sha256, error);
    free(history);
    return status;
}

/* Uploads the history, and the maximum of each column times the margin. history has room for one
 * more row. */
static void upload(const struct quantization *q, float *history) {
    int64_t count = quantization_count(q);
    size_t row = (size_t)count * sizeof *history;
    float *amax = history + q->history_length * count;
    for (int64_t i = 0; i < count; i++) amax[i] = 0;
    for (int64_t i = 0; i < q->history_length * count; i++)
        if (history[i] > amax[i % count]) amax[i % count] = history[i];
    for (int64_t i = 0; i < count; i++) amax[i] *= q->margin;
    backend_upload(q->be, q->history, history, (size_t)q->history_length * row);
    backend_upload(q->be, q->amax, amax, row);
}

int checkpoint_read_history(const struct quantization *quantization, const char *directory,
                            int64_t step, struct error *error) {
    const struct quantization *q = quantization;
    char path[FILE_PATH_MAX];
    if (q->history_length == 0) return 0;
    if (file_path_join(path, directory, checkpoint_history_name, error)) return -1;
    if (!file_exists(path)) return 0;
    int64_t count = quantization_count(q);
    float *history = malloc((size_t)((q->history_length + 1) * count) * sizeof *history);
    if (!history) return fail(error, "out of memory for the history of fp8");
    int status = amax_history_read(history, q->history_length, count, path, step, error);
    if (status == 0) upload(q, history);
    free(history);
    return status;
}
