#include "model/io/tensor_files.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "data/util/min_max.h"
#include "data/util/printed.h"

/* An index being read, for messages. */
struct index_reader {
    const char *directory;
    const char *where;
    struct error *error;
};

static int open_file(struct tensor_files *files, const char *path, struct error *error) {
    struct safetensors file;
    if (safetensors_open(&file, path, error)) return -1;
    arrput(files->files, file);
    return 0;
}

static int compare_names(const void *a, const void *b) {
    const struct stored_tensor *left = a, *right = b;
    return strcmp(left->entry->name, right->entry->name);
}

/* Lists the tensors of all files, sorted by name. Names within a file are already known to
 * differ. */
static int list_tensors(struct tensor_files *files, struct error *error) {
    size_t count = 0, next = 0;
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) count += (size_t)files->files[i].count;
    files->tensors = malloc((count + 1) * sizeof *files->tensors);
    if (!files->tensors || count > INT32_MAX)
        return fail_memory(error, "the tensors of %.400s", files->where);
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) {
        const struct safetensors *file = &files->files[i];
        for (int k = 0; k < file->count; k++)
            files->tensors[next++] = (struct stored_tensor){&file->entries[k], file, NULL};
    }
    files->count = files->stored_count = (int)count;
    files->stored = files->tensors;
    qsort(files->tensors, count, sizeof *files->tensors, compare_names);
    for (size_t i = 1; i < count; i++) {
        const struct stored_tensor *tensor = &files->tensors[i];
        if (strcmp(tensor[-1].entry->name, tensor->entry->name) == 0)
            return fail(error,
                        "%.300s: tensor %s is also in %.300s\nuse a model whose shards hold each "
                        "tensor once",
                        tensor->file->reader.path, json_text_shown(tensor->entry->name).text,
                        tensor[-1].file->reader.path);
    }
    return 0;
}

/* A set of names, which the index owns. */
struct shard_name {
    char *key;
    bool value;
};

static int list_shards(struct shard_name **names, const struct index_reader *reader,
                       const cJSON *map) {
    const cJSON *member;
    cJSON_ArrayForEach(member, map) {
        if (!cJSON_IsString(member) || !file_name_is_plain(member->valuestring))
            return fail(reader->error,
                        "%.300s: weight_map says that tensor %s is in \"%s\", which is no plain "
                        "file name\nuse an index whose shards lie beside it",
                        reader->where, json_text_shown(member->string).text,
                        json_text_shown(cJSON_IsString(member) ? member->valuestring : "?").text);
        shput(*names, member->valuestring, true);
    }
    if (shlen(*names) > 0 && shlen(*names) <= TENSOR_FILES_MAX) return 0;
    return fail(reader->error, "%.300s: weight_map names %d files (allowed: 1 to %d)",
                reader->where, (int)shlen(*names), TENSOR_FILES_MAX);
}

static int open_shards(struct tensor_files *files, const struct index_reader *reader,
                       const struct shard_name *names) {
    char path[FILE_PATH_MAX];
    for (ptrdiff_t i = 0; i < shlen(names); i++) {
        if (file_path_join(path, reader->directory, names[i].key, reader->error)) return -1;
        if (!file_exists(path))
            return fail(reader->error,
                        "%.300s names %s, which is missing beside it\ncopy or download it too",
                        reader->where, json_text_shown(names[i].key).text);
        if (open_file(files, path, reader->error)) return -1;
    }
    return list_tensors(files, reader->error);
}

/* Checks that each tensor is in the file that the map gives for it. */
static int check_map(const struct tensor_files *files, const struct index_reader *reader,
                     const cJSON *map) {
    const cJSON *member;
    cJSON_ArrayForEach(member, map) {
        const struct stored_tensor *tensor = tensor_files_find(files, member->string);
        const char *name = tensor ? strrchr(tensor->file->reader.path, '/') + 1 : NULL;
        if (name && strcmp(name, member->valuestring) == 0) continue;
        return fail(reader->error,
                    "%.300s: tensor %s should be in %s, but is %s%s\nthe files do not belong "
                    "together: copy or download them again",
                    reader->where, json_text_shown(member->string).text,
                    json_text_shown(member->valuestring).text, name ? "in " : "not",
                    name ? json_text_shown(name).text : "");
    }
    return 0;
}

static int open_index(struct tensor_files *files, const struct index_reader *reader) {
    struct json_file index;
    struct shard_name *names = NULL;
    if (json_file_open(&index, reader->where, reader->error)) return -1;
    const cJSON *map = json_member(index.root, "weight_map");
    int status = 0;
    if (!cJSON_IsObject(map))
        status =
            fail(reader->error, "%.300s: \"weight_map\" is missing or no object\nuse another file",
                 reader->where);
    if (status == 0) status = list_shards(&names, reader, map);
    if (status == 0) status = open_shards(files, reader, names);
    if (status == 0) status = check_map(files, reader, map);
    shfree(names);
    json_file_close(&index);
    return status;
}

/* Fails because the directory has neither file. */
static int no_weights(const char *directory, const char *stem, struct error *error) {
    static const char from_transformers[] =
        "transformers: AutoModelForCausalLM.from_pretrained(DIR)";
    static const struct {
        const char *name, *reader;
    } others[] = {
        {"pytorch_model.bin", from_transformers},
        {"pytorch_model.bin.index.json", from_transformers},
        {"adapter_model.bin", "peft: AutoPeftModelForCausalLM.from_pretrained(DIR)"},
    };
    char path[FILE_PATH_MAX];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (file_path_join(path, directory, others[i].name, error)) return -1;
        if (file_exists(path))
            return fail(error,
                        "%.400s: only safetensors files are read\nconvert it with %s"
                        ".save_pretrained(NEW_DIR, safe_serialization=True)",
                        path, others[i].reader);
    }
    return fail(error,
                "%.400s holds neither %s.safetensors nor %s.safetensors.index.json\nname a "
                "checkpoint, or a model that Hugging Face's "
                "save_pretrained wrote",
                directory, stem, stem);
}

int tensor_files_open_directory(struct tensor_files *files, const char *directory, const char *stem,
                                struct error *error) {
    char name[STORED_FILE_NAME_MAX], path[FILE_PATH_MAX];
    *files = (struct tensor_files){0};
    snprintf(name, sizeof name, "%s.safetensors", stem);
    if (file_path_join(path, directory, name, error)) return -1;
    bool single = file_exists(path);
    if (!single) {
        snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
        if (file_path_join(path, directory, name, error)) return -1;
        if (!file_exists(path)) return no_weights(directory, stem, error);
    }
    files->where = strdup(path);
    if (!files->where) return fail_memory(error, "%.400s", path);
    const struct index_reader reader = {directory, path, error};
    int status = single ? open_file(files, path, error) || list_tensors(files, error)
                        : open_index(files, &reader);
    if (status) tensor_files_close(files);
    return status ? -1 : 0;
}

const struct stored_tensor *tensor_files_find(const struct tensor_files *files, const char *name) {
    const struct safetensors_entry wanted = {.name = name};
    const struct stored_tensor key = {.entry = &wanted};
    return bsearch(&key, files->tensors, (size_t)files->count, sizeof key, compare_names);
}

/* Hashes a tensor's name, dtype, shape and data. */
static int hash_tensor(char hex[SHA256_HEX_MAX], const struct stored_tensor *tensor,
                       struct error *error) {
    char buffer[1 << 16];
    const struct safetensors_entry *entry = tensor->entry;
    const char *dtype = safetensors_dtype_name(entry->dtype);
    struct sha256 hash;
    sha256_begin(&hash);
    sha256_add(&hash, entry->name, strlen(entry->name) + 1);
    sha256_add(&hash, dtype, strlen(dtype) + 1);
    sha256_add(&hash, entry->shape, (size_t)entry->rank * sizeof *entry->shape);
    for (uint64_t at = 0; at < entry->bytes; at += sizeof buffer) {
        const size_t count = (size_t)MIN(entry->bytes - at, sizeof buffer);
        if (safetensors_read(buffer, tensor->file, entry, at, count, error)) return -1;
        sha256_add(&hash, buffer, count);
    }
    sha256_end(hex, &hash);
    return 0;
}

int tensor_files_fingerprint(char hex[SHA256_HEX_MAX], const struct tensor_files *files,
                             struct error *error) {
    char(*hashes)[SHA256_HEX_MAX] = malloc((size_t)files->stored_count * sizeof *hashes + 1);
    int bad = files->stored_count;
    if (!hashes) return fail_memory(error, "%.400s", files->where);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < files->stored_count; i++) {
        struct error reason;
        if (hash_tensor(hashes[i], &files->stored[i], &reason) == 0) continue;
#pragma omp critical
        if (i < bad) bad = i, *error = reason;
    }
    if (bad == files->stored_count)
        sha256_of(hex, hashes, (size_t)files->stored_count * sizeof *hashes);
    free(hashes);
    return bad < files->stored_count ? -1 : 0;
}

void tensor_files_close(struct tensor_files *files) {
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) safetensors_close(&files->files[i]);
    arrfree(files->files);
    if (files->stored != files->tensors) free(files->stored);
    free(files->tensors);
    free(files->quantized);
    free(files->where);
    *files = (struct tensor_files){0};
}

/* ---- writing */

int stored_file_write(struct stored_file **files, const char *directory, const char *name,
                      const void *bytes, size_t size, struct error *error) {
    char path[FILE_PATH_MAX];
    struct stored_file file = {.bytes = size};
    assert(strlen(name) < sizeof file.name);
    strcpy(file.name, name);
    if (file_path_join(path, directory, name, error) ||
        file_write_whole(path, bytes, size, file.sha256, error))
        return -1;
    arrput(*files, file);
    return 0;
}

int stored_file_print(struct stored_file **files, const char *directory, const char *name,
                      void (*print)(FILE *out, const void *context), const void *context,
                      struct error *error) {
    struct printed text;
    bool opened = printed_open(&text) == 0;
    if (opened) print(text.out, context);
    if (!opened || printed_close(&text)) return fail_memory(error, "%.400s/%s", directory, name);
    int status = stored_file_write(files, directory, name, text.text, text.size, error);
    free(text.text);
    return status;
}

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

/* Stores the name of a file: "STEM-00002-of-00003.safetensors", or "STEM.safetensors" for one. */
static void name_file(char name[STORED_FILE_NAME_MAX], const struct tensor_division *division,
                      int file) {
    int files = (int)arrlen(division->ends);
    if (files > 1)
        snprintf(name, STORED_FILE_NAME_MAX, "%s-%05d-of-%05d.safetensors", division->stem,
                 file + 1, files);
    else snprintf(name, STORED_FILE_NAME_MAX, "%s.safetensors", division->stem);
}

int tensor_division_begin_file(struct safetensors_writer *writer,
                               const struct tensor_division *division, int file,
                               const char *directory, struct error *error) {
    char name[STORED_FILE_NAME_MAX], path[FILE_PATH_MAX];
    int first = first_of(division, file);
    name_file(name, division, file);
    if (file_path_join(path, directory, name, error)) return -1;
    return safetensors_write_begin(writer, path, division->entries + first,
                                   division->ends[file] - first, error);
}

int tensor_division_end_file(struct stored_file *stored, struct safetensors_writer *writer,
                             const struct tensor_division *division, int file,
                             struct error *error) {
    if (safetensors_write_end(writer, error)) return -1;
    *stored = (struct stored_file){.bytes = writer->file.size};
    name_file(stored->name, division, file);
    memcpy(stored->sha256, writer->file.hex, sizeof stored->sha256);
    return 0;
}

static void print_index(FILE *out, const void *context) {
    const struct tensor_division *division = context;
    char name[STORED_FILE_NAME_MAX];
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n",
            total_of(division));
    fputs("  \"weight_map\": {", out);
    for (int file = 0, i = 0; file < (int)arrlen(division->ends); file++) {
        name_file(name, division, file);
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
    char name[STORED_FILE_NAME_MAX];
    if (arrlen(division->ends) == 1) return 0;
    snprintf(name, sizeof name, "%s.safetensors.index.json", division->stem);
    return stored_file_print(files, directory, name, print_index, division, error);
}

static int write_tensor(struct safetensors_writer *writer, const struct tensor_source *source,
                        int entry, uint64_t total, void *buffer, struct error *error) {
    for (uint64_t first = 0; first < total; first += TENSOR_PIECE_BYTES) {
        uint64_t left = total - first;
        size_t bytes = MIN(left, TENSOR_PIECE_BYTES);
        if (source->read(source->context, buffer, entry, first, bytes, error)) {
            safetensors_write_abandon(writer);
            return -1;
        }
        if (safetensors_write_data(writer, buffer, bytes, error)) return -1;
    }
    return 0;
}

int tensor_shards_write(const char *directory, const char *stem,
                        const struct safetensors_entry *entries, int count, uint64_t limit,
                        const struct tensor_source *source, struct stored_file **files,
                        struct error *error) {
    struct tensor_division division;
    struct safetensors_writer writer;
    struct stored_file stored;
    void *buffer = malloc(TENSOR_PIECE_BYTES);
    if (!buffer) return fail_memory(error, "%.400s", directory);
    int status = tensor_division_open(&division, stem, entries, count, limit, 1, error);
    for (int file = 0; status == 0 && file < (int)arrlen(division.ends); file++) {
        status = tensor_division_begin_file(&writer, &division, file, directory, error);
        for (int i = first_of(&division, file); status == 0 && i < division.ends[file]; i++)
            status = write_tensor(&writer, source, i, bytes_of(&entries[i]), buffer, error);
        if (status == 0)
            status = tensor_division_end_file(&stored, &writer, &division, file, error);
        if (status == 0) arrput(*files, stored);
    }
    if (status == 0) status = tensor_division_write_index(&division, directory, files, error);
    tensor_division_close(&division);
    free(buffer);
    return status;
}
