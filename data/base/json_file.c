#include "data/base/json_file.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/base/files.h"
#include "data/base/json_text.h"

int json_file_open(struct json_file *file, const char *path, struct error *error) {
    char where[FILE_SHOWN_MAX];
    struct json_place *places = NULL;
    *file = (struct json_file){0};
    if (file_read_all(&file->text, &file->size, path, JSON_FILE_MAX_BYTES, error)) return -1;
    file_path_shown(where, path);
    /* The scan of config files is strict where cJSON is not, and knows the place of an error. */
    int status = json_text_scan(file->text, file->size, where, &places, error);
    arrfree(places);
    if (status == 0) {
        file->root = cJSON_ParseWithLength(file->text, file->size);
        if (!file->root) status = fail(error, "out of memory while reading %s", where);
        else if (!cJSON_IsObject(file->root))
            status = fail(error, "%s: it holds no JSON object, {...}", where);
    }
    if (status) json_file_close(file);
    return status;
}

void json_file_close(struct json_file *file) {
    free(file->text);
    cJSON_Delete(file->root);
    *file = (struct json_file){0};
}

const struct cJSON *json_member(const struct cJSON *object, const char *key) {
    const cJSON *found = NULL, *member;
    if (!cJSON_IsObject(object)) return NULL;
    cJSON_ArrayForEach(member, object) {
        if (strcmp(member->string, key) != 0) continue;
        if (found) return NULL;
        found = member;
    }
    return found;
}

bool json_whole(int64_t *value, const struct cJSON *object, const char *key, int64_t minimum,
                int64_t maximum) {
    const cJSON *member = json_member(object, key);
    if (!cJSON_IsNumber(member)) return false;
    double number = member->valuedouble;
    if (!(number >= (double)minimum && number <= (double)maximum)) return false;
    *value = (int64_t)number;
    return (double)*value == number;
}
