#include "model/io/tensor_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/json.h"

enum { NAME_MAX_BYTES = 64 };

/* An index being read, for messages. */
struct source {
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

static int compare_places(const void *a, const void *b) {
    const struct tensor_place *left = a, *right = b;
    return strcmp(left->entry->name, right->entry->name);
}

/* Lists the tensors of all files, sorted by name. Names within a file are already known to
 * differ. */
static int list_places(struct tensor_files *files, struct error *error) {
    size_t count = 0, next = 0;
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) count += (size_t)files->files[i].count;
    files->places = malloc((count + 1) * sizeof *files->places);
    if (!files->places || count > INT32_MAX)
        return fail(error, "out of memory for the tensors of %.400s\nfree memory and try again",
                    files->where);
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) {
        const struct safetensors *file = &files->files[i];
        for (int k = 0; k < file->count; k++)
            files->places[next++] = (struct tensor_place){&file->entries[k], file};
    }
    files->count = (int)count;
    qsort(files->places, count, sizeof *files->places, compare_places);
    for (size_t i = 1; i < count; i++) {
        const struct tensor_place *place = &files->places[i];
        if (strcmp(place[-1].entry->name, place->entry->name) == 0)
            return fail(error,
                        "%.300s: tensor %s is also in %.300s\nuse a model whose shards hold each "
                        "tensor once",
                        place->file->from.path, json_text_shown(place->entry->name).text,
                        place[-1].file->from.path);
    }
    return 0;
}

/* A set of names, which the index owns. */
struct shard_name {
    char *key;
    bool value;
};

static int list_shards(struct shard_name **names, const struct source *source, const cJSON *map) {
    const cJSON *member;
    cJSON_ArrayForEach(member, map) {
        if (!cJSON_IsString(member) || !file_name_is_plain(member->valuestring))
            return fail(source->error,
                        "%.300s: weight_map says that tensor %s is in \"%s\", which is no plain "
                        "file name\nuse an index whose shards lie beside it",
                        source->where, json_text_shown(member->string).text,
                        json_text_shown(cJSON_IsString(member) ? member->valuestring : "?").text);
        shput(*names, member->valuestring, true);
    }
    if (shlen(*names) > 0 && shlen(*names) <= TENSOR_FILES_MAX) return 0;
    return fail(source->error, "%.300s: weight_map names %d files (allowed: 1 to %d)",
                source->where, (int)shlen(*names), TENSOR_FILES_MAX);
}

static int open_shards(struct tensor_files *files, const struct source *source,
                       const struct shard_name *names) {
    char path[FILE_PATH_MAX];
    for (ptrdiff_t i = 0; i < shlen(names); i++) {
        if (file_path_join(path, source->directory, names[i].key, source->error)) return -1;
        if (!file_exists(path))
            return fail(source->error,
                        "%.300s names %s, which is missing beside it\ncopy or download it too",
                        source->where, json_text_shown(names[i].key).text);
        if (open_file(files, path, source->error)) return -1;
    }
    return list_places(files, source->error);
}

/* Checks that each tensor is in the file that the map gives for it. */
static int check_map(const struct tensor_files *files, const struct source *source,
                     const cJSON *map) {
    const cJSON *member;
    cJSON_ArrayForEach(member, map) {
        const struct tensor_place *place = tensor_files_find(files, member->string);
        const char *name = place ? strrchr(place->file->from.path, '/') + 1 : NULL;
        if (name && strcmp(name, member->valuestring) == 0) continue;
        return fail(source->error,
                    "%.300s: tensor %s should be in %s, but is %s%s\nthe files do not belong "
                    "together: copy or download them again",
                    source->where, json_text_shown(member->string).text,
                    json_text_shown(member->valuestring).text, name ? "in " : "not",
                    name ? json_text_shown(name).text : "");
    }
    return 0;
}

static int open_index(struct tensor_files *files, const struct source *source) {
    struct json_file index;
    struct shard_name *names = NULL;
    if (json_file_open(&index, source->where, source->error)) return -1;
    const cJSON *map = json_member(index.root, "weight_map");
    int status = 0;
    if (!cJSON_IsObject(map))
        status =
            fail(source->error, "%.300s: \"weight_map\" is missing or no object\nuse another file",
                 source->where);
    if (status == 0) status = list_shards(&names, source, map);
    if (status == 0) status = open_shards(files, source, names);
    if (status == 0) status = check_map(files, source, map);
    shfree(names);
    json_file_close(&index);
    return status;
}

/* Fails because the directory has neither file. */
static int no_weights(const char *directory, const char *stem, struct error *error) {
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    char path[FILE_PATH_MAX];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (file_path_join(path, directory, others[i], error)) return -1;
        if (file_exists(path))
            return fail(error,
                        "%.400s: only safetensors files are read\nconvert it with transformers: "
                        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR, "
                        "safe_serialization=True)",
                        path);
    }
    return fail(error,
                "%.400s holds neither %s.safetensors nor %s.safetensors.index.json\nname a "
                "checkpoint, or a model that Hugging Face's "
                "save_pretrained wrote",
                directory, stem, stem);
}

int tensor_files_open_directory(struct tensor_files *files, const char *directory, const char *stem,
                                struct error *error) {
    char name[NAME_MAX_BYTES], path[FILE_PATH_MAX];
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
    if (!files->where) return fail(error, "out of memory while opening %.400s", path);
    const struct source source = {directory, path, error};
    int status = single ? open_file(files, path, error) || list_places(files, error)
                        : open_index(files, &source);
    if (status) tensor_files_close(files);
    return status ? -1 : 0;
}

const struct tensor_place *tensor_files_find(const struct tensor_files *files, const char *name) {
    const struct safetensors_entry wanted = {.name = name};
    const struct tensor_place key = {&wanted, NULL};
    return bsearch(&key, files->places, (size_t)files->count, sizeof key, compare_places);
}

void tensor_files_close(struct tensor_files *files) {
    for (ptrdiff_t i = 0; i < arrlen(files->files); i++) safetensors_close(&files->files[i]);
    arrfree(files->files);
    free(files->places);
    free(files->where);
    *files = (struct tensor_files){0};
}
