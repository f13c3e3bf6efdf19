#include "model/io/tensor_shards.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/json_escape.h"
#include "data/util/printed.h"
#include "model/io/tensor_files.h"

static uint64_t bytes_of(const struct safetensors_entry *entry) {
    uint64_t bytes = 0; /* the writer refuses sizes that overflow */
    return safetensors_entry_bytes(&bytes, entry) ? bytes : 0;
}

static uint64_t total_of(const struct tensor_division *division) {
    uint64_t total = 0;
    for (int i = 0; i < division->count; i++) total += bytes_of(&division->entries[i]);
    return total;
}

/* Divides tensors so that each file has as many as fit. */
static void divide_by_limit(struct tensor_division *division, uint64_t limit) {
    int end = 0;
    do {
        int first = end;
        uint64_t used = 0;
        while (end < division->count) {
            uint64_t bytes = bytes_of(&division->entries[end]);
            if (end > first && (used > limit || bytes > limit - used)) break;
            used += bytes;
            end++;
        }
        arrput(division->ends, end);
    } while (end < division->count);
}

/* Divides tensors among files of about the same size: each ends with the tensor that completes its
 * share of all bytes. */
static void divide_evenly(struct tensor_division *division, int files) {
    double total = (double)total_of(division), used = 0;
    int end = 0;
    for (int file = 0; file < files; file++) {
        int last =
            division->count - (files - file - 1); /* leaves at least one for each later file */
        do used += (double)bytes_of(&division->entries[end++]);
        while (end < last && (file + 1 == files || used < total * (file + 1) / files));
        arrput(division->ends, end);
    }
}

int tensor_division_open(struct tensor_division *division, const char *stem,
                         const struct safetensors_entry *entries, int count, uint64_t limit,
                         int files, struct error *error) {
    assert(limit > 0);
    *division = (struct tensor_division){stem, entries, count, NULL};
    if (files > 1 && count > 0) {
        uint64_t share = total_of(division) / (uint64_t)files + 1;
        uint64_t all = (uint64_t)files * ((share + limit - 1) / limit);
        divide_evenly(division, all < (uint64_t)count ? (int)all : count);
    } else divide_by_limit(division, limit);
    if (arrlen(division->ends) <= TENSOR_FILES_MAX) return 0;
    return fail(error,
                "cannot write %.400s: with %" PRIu64 " bytes a file there would be %d files "
                "(allowed: %d)\nallow larger files",
                stem, limit, (int)arrlen(division->ends), TENSOR_FILES_MAX);
}

void tensor_division_close(struct tensor_division *division) {
    arrfree(division->ends);
}

static int first_of(const struct tensor_division *division, int file) {
    return file > 0 ? division->ends[file - 1] : 0;
}

void tensor_division_name(char name[STORED_FILE_NAME_MAX], const struct tensor_division *division,
                          int file) {
    int files = (int)arrlen(division->ends);
    if (files == 1) snprintf(name, STORED_FILE_NAME_MAX, "%s.safetensors", division->stem);
    else
        snprintf(name, STORED_FILE_NAME_MAX, "%s-%05d-of-%05d.safetensors", division->stem,
                 file + 1, files);
}

int tensor_division_begin_file(struct safetensors_writer *writer,
                               const struct tensor_division *division, int file,
                               const char *directory, struct error *error) {
    char name[STORED_FILE_NAME_MAX], path[FILE_PATH_MAX];
    int first = first_of(division, file);
    tensor_division_name(name, division, file);
    if (file_path_join(path, directory, name, error)) return -1;
    return safetensors_write_begin(writer, path, division->entries + first,
                                   division->ends[file] - first, error);
}

int tensor_division_end_file(struct stored_file *stored, struct safetensors_writer *writer,
                             const struct tensor_division *division, int file,
                             struct error *error) {
    if (safetensors_write_end(writer, error)) return -1;
    *stored = (struct stored_file){.bytes = writer->file.size};
    tensor_division_name(stored->name, division, file);
    memcpy(stored->sha256, writer->file.hex, sizeof stored->sha256);
    return 0;
}

static void print_index(FILE *out, const struct tensor_division *division) {
    char name[STORED_FILE_NAME_MAX];
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n",
            total_of(division));
    fputs("  \"weight_map\": {", out);
    for (int file = 0, i = 0; file < (int)arrlen(division->ends); file++) {
        tensor_division_name(name, division, file);
        for (; i < division->ends[file]; i++) {
            fputs(i ? ",\n    " : "\n    ", out);
            json_print_string(out, division->entries[i].name);
            fprintf(out, ": \"%s\"", name);
        }
    }
    fputs("\n  }\n}\n", out);
}

int tensor_division_write_index(const struct tensor_division *division, const char *directory,
                                struct stored_file **files, struct error *error) {
    char path[FILE_PATH_MAX];
    struct stored_file file = {0};
    struct printed text;
    snprintf(file.name, sizeof file.name, "%s.safetensors.index.json", division->stem);
    if (file_path_join(path, directory, file.name, error)) return -1;
    if (printed_open(&text)) return fail(error, "out of memory while writing %.400s", path);
    print_index(text.out, division);
    if (printed_write(&text, path, file.sha256, error)) return -1;
    file.bytes = text.size;
    arrput(*files, file);
    return 0;
}

static int write_tensor(struct safetensors_writer *writer, const struct tensor_source *source,
                        int entry, uint64_t total, void *buffer, struct error *error) {
    for (uint64_t first = 0; first < total; first += TENSOR_PIECE_BYTES) {
        uint64_t left = total - first;
        size_t bytes = left < TENSOR_PIECE_BYTES ? left : TENSOR_PIECE_BYTES;
        if (source->read(source->context, buffer, entry, first, bytes, error)) {
            safetensors_write_abandon(writer);
            return -1;
        }
        if (safetensors_write_data(writer, buffer, bytes, error)) return -1;
    }
    return 0;
}

static int write_files(const struct tensor_division *division, const char *directory,
                       const struct tensor_source *source, struct stored_file **files, void *buffer,
                       struct error *error) {
    struct safetensors_writer writer;
    struct stored_file stored;
    int count = (int)arrlen(division->ends);
    for (int file = 0, i = 0; file < count; file++) {
        if (tensor_division_begin_file(&writer, division, file, directory, error)) return -1;
        for (; i < division->ends[file]; i++)
            if (write_tensor(&writer, source, i, bytes_of(&division->entries[i]), buffer, error))
                return -1;
        if (tensor_division_end_file(&stored, &writer, division, file, error)) return -1;
        arrput(*files, stored);
    }
    return count > 1 ? tensor_division_write_index(division, directory, files, error) : 0;
}

int tensor_shards_write(const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        const struct tensor_source *source, struct stored_file **files,
                        struct error *error) {
    struct tensor_division division;
    void *buffer = malloc(TENSOR_PIECE_BYTES);
    if (!buffer) return fail(error, "out of memory while writing to %.400s", directory);
    int status = tensor_division_open(&division, stem, entries, count, limit, 1, error);
    if (status == 0) status = write_files(&division, directory, source, files, buffer, error);
    tensor_division_close(&division);
    free(buffer);
    return status;
}
