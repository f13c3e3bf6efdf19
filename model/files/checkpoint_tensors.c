#include "model/files/checkpoint_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "model/files/safetensors_write.h"

enum { PIECE = 1 << 18 }; /* elements that pass through the host at a time */

/* Appends one flat array, parameter by parameter. The writer is abandoned after a failure. */
static int write_flat(struct safetensors_writer *writer, const struct gpt *gpt,
                      const struct tensor *flat, float *buffer, struct error *error) {
    struct backend *be = gpt->be;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        struct tensor view = gpt_parameter_view(flat, &gpt->list[i]);
        int64_t total = tensor_count(&view);
        for (int64_t first = 0; first < total; first += PIECE) {
            int64_t count = total - first < PIECE ? total - first : PIECE;
            size_t bytes = (size_t)count * sizeof *buffer;
            backend_download(be, buffer, (const float *)view.data + first, bytes);
            if (be->failure.text[0]) {
                safetensors_write_abandon(writer);
                return fail(error, "%s", be->failure.text);
            }
            if (safetensors_write_data(writer, buffer, bytes, error)) return -1;
        }
    }
    return 0;
}

static int write_arrays(const struct gpt *gpt, const struct tensor *const *arrays,
                        const char *const *prefixes, int count, const char *path,
                        struct checkpoint_file *file, struct error *error) {
    struct safetensors_entry *entries = NULL;
    struct safetensors_writer writer;
    float *buffer = malloc(PIECE * sizeof *buffer);
    if (!buffer) return fail(error, "out of memory while writing %.400s", path);
    for (int i = 0; i < count; i++)
        checkpoint_list_entries(&entries, gpt->list, prefixes[i], DTYPE_F32);
    int status = safetensors_write_begin(&writer, path, entries, (int)arrlen(entries), error);
    for (int i = 0; status == 0 && i < count; i++)
        status = write_flat(&writer, gpt, arrays[i], buffer, error);
    if (status == 0) status = safetensors_write_end(&writer, error);
    if (status == 0) {
        file->bytes = writer.file.size;
        memcpy(file->sha256, writer.file.hex, sizeof file->sha256);
    }
    checkpoint_free_entries(entries);
    free(buffer);
    return status;
}

int checkpoint_write_weights(const struct gpt *gpt, const char *path, struct checkpoint_file *file,
                             struct error *error) {
    const char *prefix = checkpoint_weight_prefix;
    const struct tensor *array = &gpt->master;
    return write_arrays(gpt, &array, &prefix, 1, path, file, error);
}

int checkpoint_write_moments(const struct optimizer *optimizer, const char *path,
                             struct checkpoint_file *file, struct error *error) {
    const struct tensor *const arrays[] = {&optimizer->moment1, &optimizer->moment2};
    return write_arrays(optimizer->gpt, arrays, checkpoint_moment_prefixes, 2, path, file, error);
}

static void read_tensor(struct gpt *gpt, const struct tensor *flat,
                        const struct parameter *parameter, const struct tensor_place *place) {
    enum { READ = 16384 };
    float values[READ];
    struct tensor view = gpt_parameter_view(flat, parameter);
    int64_t total = tensor_count(&view);
    for (int64_t first = 0; first < total; first += READ) {
        int64_t count = total - first < READ ? total - first : READ;
        checkpoint_widen(values, place->entry, first, count);
        backend_upload(gpt->be, (float *)view.data + first, values, (size_t)count * sizeof *values);
    }
}

void checkpoint_read_weights(struct gpt *gpt, const struct tensor_files *files) {
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++)
        read_tensor(gpt, &gpt->master, &gpt->list[i],
                    checkpoint_find_weight(files, gpt->list[i].name));
}

void checkpoint_read_moments(struct optimizer *optimizer, const struct tensor_files *files) {
    const struct tensor *const arrays[] = {&optimizer->moment1, &optimizer->moment2};
    struct gpt *gpt = optimizer->gpt;
    for (int moment = 0; moment < 2; moment++)
        for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++)
            read_tensor(gpt, arrays[moment], &gpt->list[i],
                        checkpoint_find_moment(files, moment, gpt->list[i].name));
}
