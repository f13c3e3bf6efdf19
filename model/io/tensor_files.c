#include "model/io/tensor_files.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"

enum { NAME_MAX_BYTES = 64 };

/* An index being read, for messages. */
struct source {
    const char *directory;
    const char *where;
    struct error *error;
};

static int out_of_memory(const char *path, struct error *error) {
    return fail(error, "out of memory for the tensors of %.400s\nfree memory and try again", path);
}

static int compare_places(const void *a, const void *b) {
    const struct tensor_place *left = a, *right = b;
    return strcmp(left->entry->name, right->entry->name);
}

/* Lists the tensors of all files, sorted by name. Names within a file are already known to
 * differ. */
static int list_places(struct tensor_files *files, struct error *error) {
    size_t count = 0, next = 0;
    for (int i = 0; i < files->file_count; i++) count += (size_t)files->files[i].safetensors.count;
    files->places = malloc((count + 1) * sizeof *files->places);
    if (!files->places || count > INT32_MAX) return out_of_memory(files->where, error);
    for (int i = 0; i < files->file_count; i++) {
        const struct tensor_file *file = &files->files[i];
        for (int k = 0; k < file->safetensors.count; k++)
            files->places[next++] = (struct tensor_place){&file->safetensors.entries[k], file};
    }
    files->count = (int)count;
    qsort(files->places, count, sizeof *files->places, compare_places);
    for (size_t i = 1; i < count; i++) {
        const struct tensor_place *place = &files->places[i];
        if (strcmp(place[-1].entry->name, place->entry->name) == 0)
            return fail(error,
                        "%.300s: tensor %s is also in %.300s\nuse a model whose shards hold each "
                        "tensor once",
                        place->file->path, json_text_shown(place->entry->name).text,
                        place[-1].file->path);
    }
    return 0;
}

/* Opens the files whose paths are in files->files. */
static int open_all(struct tensor_files *files, struct error *error) {
    for (int i = 0; i < files->file_count; i++)
        if (safetensors_open(&files->files[i].safetensors, files->files[i].path, error)) return -1;
    return list_places(files, error);
}

static int open_one(struct tensor_files *files, const char *path, struct error *error) {
    files->where = strdup(path);
    files->files = calloc(1, sizeof *files->files);
    if (!files->where || !files->files) return out_of_memory(path, error);
    files->files[0].path = strdup(path);
    files->file_count = 1;
    if (!files->files[0].path) return out_of_memory(path, error);
    return open_all(files, error);
}

int tensor_files_open(struct tensor_files *files, const char *path, struct error *error) {
    *files = (struct tensor_files){0};
    if (open_one(files, path, error) == 0) return 0;
    tensor_files_close(files);
    return -1;
}

/* True if the untrusted name of a shard is a file in the directory of the index. */
static bool is_plain_name(const char *name) {
    return name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Stores the map's distinct file names, sorted, in *names ([*count], freed by the caller). */
static int list_shards(const struct source *source, const cJSON *map, const char ***names,
                       size_t *count) {
    const cJSON *member;
    size_t used = 0;
    *count = 0;
    *names = malloc(((size_t)cJSON_GetArraySize(map) + 1) * sizeof **names);
    if (!*names) return out_of_memory(source->where, source->error);
    cJSON_ArrayForEach(member, map) {
        if (!cJSON_IsString(member) || !is_plain_name(member->valuestring))
            return fail(source->error,
                        "%.300s: weight_map says that tensor %s is in \"%s\", which is no plain "
                        "file name\nuse an index whose shards lie beside it",
                        source->where, json_text_shown(member->string).text,
                        json_text_shown(cJSON_IsString(member) ? member->valuestring : "?").text);
        (*names)[used++] = member->valuestring;
    }
    if (used > 1) qsort(*names, used, sizeof **names, compare_names);
    for (size_t i = 0; i < used; i++)
        if (i == 0 || strcmp((*names)[i], (*names)[*count - 1]) != 0)
            (*names)[(*count)++] = (*names)[i];
    if (*count > 0 && *count <= TENSOR_FILES_MAX) return 0;
    return fail(source->error, "%.300s: weight_map names %zu files (allowed: 1 to %d)",
                source->where, *count, TENSOR_FILES_MAX);
}

static int set_shards(struct tensor_files *files, const struct source *source,
                      const char *const *names, size_t count) {
    char path[FILE_PATH_MAX];
    files->files = calloc(count, sizeof *files->files);
    if (!files->files) return out_of_memory(source->where, source->error);
    for (size_t i = 0; i < count; i++) {
        if (file_path_join(path, source->directory, names[i], source->error)) return -1;
        if (!file_exists(path))
            return fail(source->error,
                        "%.300s names %s, which is missing beside it\ncopy or download it too",
                        source->where, json_text_shown(names[i]).text);
        files->files[i].path = strdup(path);
        files->file_count++;
        if (!files->files[i].path) return out_of_memory(path, source->error);
    }
    return 0;
}

/* Checks that each tensor is in the file that the map gives for it. */
static int check_map(const struct tensor_files *files, const struct source *source,
                     const cJSON *map) {
    const cJSON *member;
    cJSON_ArrayForEach(member, map) {
        const struct tensor_place *place = tensor_files_find(files, member->string);
        const char *name = place ? strrchr(place->file->path, '/') + 1 : NULL;
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

static int open_shards(struct tensor_files *files, const struct source *source, const cJSON *root) {
    const cJSON *map = json_member(root, "weight_map");
    const char **names = NULL;
    size_t count;
    if (!cJSON_IsObject(map))
        return fail(source->error,
                    "%.300s: \"weight_map\" is missing or no object\nuse another "
                    "file",
                    source->where);
    int status = list_shards(source, map, &names, &count);
    if (status == 0) status = set_shards(files, source, names, count);
    free(names);
    if (status == 0) status = open_all(files, source->error);
    return status ? -1 : check_map(files, source, map);
}

static int open_index(struct tensor_files *files, const char *directory, const char *path,
                      struct error *error) {
    struct json_file index;
    struct source source = {directory, path, error};
    files->where = strdup(path);
    if (!files->where) return out_of_memory(path, error);
    if (json_file_open(&index, path, error)) return -1;
    int status = open_shards(files, &source, index.root);
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
    char name[NAME_MAX_BYTES], single[FILE_PATH_MAX], index[FILE_PATH_MAX];
    int status;
    *files = (struct tensor_files){0};
    snprintf(name, sizeof name, "%s.safetensors", stem);
    if (file_path_join(single, directory, name, error)) return -1;
    snprintf(name, sizeof name, "%s.safetensors.index.json", stem);
    if (file_path_join(index, directory, name, error)) return -1;
    if (file_exists(single)) status = open_one(files, single, error);
    else if (file_exists(index)) status = open_index(files, directory, index, error);
    else status = no_weights(directory, stem, error);
    if (status) tensor_files_close(files);
    return status;
}

const struct tensor_place *tensor_files_find(const struct tensor_files *files, const char *name) {
    const struct safetensors_entry wanted = {.name = name};
    const struct tensor_place key = {&wanted, NULL};
    return bsearch(&key, files->places, (size_t)files->count, sizeof key, compare_places);
}

int tensor_place_read(void *to, const struct tensor_place *place, uint64_t first, size_t size,
                      struct error *error) {
    return safetensors_read(to, &place->file->safetensors, place->entry, first, size, error);
}

void tensor_files_close(struct tensor_files *files) {
    for (int i = 0; i < files->file_count; i++) {
        safetensors_close(&files->files[i].safetensors);
        free(files->files[i].path);
    }
    free(files->files);
    free(files->places);
    free(files->where);
    *files = (struct tensor_files){0};
}
