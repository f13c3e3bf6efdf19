#include "model/files/tensor_shards.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/json_escape.h"
#include "data/base/printed.h"
#include "model/files/tensor_files.h"

static uint64_t bytes_of(const struct safetensors_entry *entry) {
    uint64_t bytes = 0; /* the writer refuses sizes that overflow */
    return safetensors_entry_bytes(&bytes, entry) ? bytes : 0;
}

/* Where the shard that begins with entry `first` ends. */
static int end_of_shard(const struct tensor_shards *shards, int first) {
    int end = first;
    uint64_t used = 0;
    while (end < shards->count) {
        uint64_t bytes = bytes_of(&shards->entries[end]);
        if (end > first && (used > shards->limit || bytes > shards->limit - used)) break;
        used += bytes;
        end++;
    }
    return end;
}

static void shard_name(char name[STORED_FILE_NAME_MAX], const struct tensor_shards *shards,
                       int shard) {
    if (shards->shard_count == 1)
        snprintf(name, STORED_FILE_NAME_MAX, "%s.safetensors", shards->stem);
    else
        snprintf(name, STORED_FILE_NAME_MAX, "%s-%05d-of-%05d.safetensors", shards->stem, shard + 1,
                 shards->shard_count);
}

static int open_shard(struct tensor_shards *shards, int first, struct error *error) {
    char name[STORED_FILE_NAME_MAX], path[FILE_PATH_MAX];
    shards->end = end_of_shard(shards, first);
    shard_name(name, shards, shards->shard);
    if (file_path_join(path, shards->directory, name, error)) return -1;
    return safetensors_write_begin(&shards->writer, path, shards->entries + first,
                                   shards->end - first, error);
}

static int close_shard(struct tensor_shards *shards, struct error *error) {
    const struct file_writer *written = &shards->writer.file;
    struct stored_file file = {0};
    if (safetensors_write_end(&shards->writer, error)) return -1;
    shard_name(file.name, shards, shards->shard);
    file.bytes = written->size;
    memcpy(file.sha256, written->hex, sizeof file.sha256);
    arrput(*shards->files, file);
    return 0;
}

int tensor_shards_begin(struct tensor_shards *shards, const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        struct stored_file **files, struct error *error) {
    assert(limit > 0);
    *shards = (struct tensor_shards){.directory = directory,
                                     .stem = stem,
                                     .entries = entries,
                                     .count = count,
                                     .limit = limit,
                                     .files = files};
    int first = 0;
    do {
        first = end_of_shard(shards, first);
        shards->shard_count++;
    } while (first < count);
    if (shards->shard_count > TENSOR_FILES_MAX)
        return fail(error,
                    "cannot write %.400s/%s: with %" PRIu64 " bytes a file there would be %d files "
                    "(allowed: %d)\nallow larger files",
                    directory, stem, limit, shards->shard_count, TENSOR_FILES_MAX);
    return open_shard(shards, 0, error);
}

int tensor_shards_data(struct tensor_shards *shards, const void *bytes, size_t size,
                       struct error *error) {
    const char *next = bytes;
    for (;;) {
        uint64_t left = shards->writer.announced - shards->writer.received;
        bool last = shards->shard + 1 == shards->shard_count;
        size_t part = size <= left || last ? size : (size_t)left;
        if (safetensors_write_data(&shards->writer, next, part, error)) return -1;
        next += part;
        size -= part;
        if (size == 0) return 0;
        if (close_shard(shards, error)) return -1;
        shards->shard++;
        if (open_shard(shards, shards->end, error)) return -1;
    }
}

static void print_index(FILE *out, const struct tensor_shards *shards) {
    char name[STORED_FILE_NAME_MAX];
    uint64_t total = 0;
    for (int i = 0; i < shards->count; i++) total += bytes_of(&shards->entries[i]);
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n", total);
    fputs("  \"weight_map\": {", out);
    for (int shard = 0, i = 0; shard < shards->shard_count; shard++) {
        shard_name(name, shards, shard);
        for (int end = end_of_shard(shards, i); i < end; i++) {
            fputs(i ? ",\n    " : "\n    ", out);
            json_print_string(out, shards->entries[i].name);
            fprintf(out, ": \"%s\"", name);
        }
    }
    fputs("\n  }\n}\n", out);
}

static int write_index(const struct tensor_shards *shards, struct error *error) {
    char path[FILE_PATH_MAX];
    struct stored_file file = {0};
    struct printed text;
    snprintf(file.name, sizeof file.name, "%s.safetensors.index.json", shards->stem);
    if (file_path_join(path, shards->directory, file.name, error)) return -1;
    if (printed_open(&text)) return fail(error, "out of memory while writing %.400s", path);
    print_index(text.out, shards);
    if (printed_write(&text, path, file.sha256, error)) return -1;
    file.bytes = text.size;
    arrput(*shards->files, file);
    return 0;
}

int tensor_shards_end(struct tensor_shards *shards, struct error *error) {
    if (close_shard(shards, error)) return -1;
    while (++shards->shard < shards->shard_count)
        if (open_shard(shards, shards->end, error) || close_shard(shards, error)) return -1;
    return shards->shard_count > 1 ? write_index(shards, error) : 0;
}

void tensor_shards_abandon(struct tensor_shards *shards) {
    safetensors_write_abandon(&shards->writer);
}
