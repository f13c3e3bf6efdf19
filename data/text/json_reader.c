#include "data/text/json_reader.h"

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/base/json.h"

int json_reader_parse(struct cJSON **root, const struct json_reader *reader, const char *text,
                      size_t size) {
    char where[JSON_READER_PATH_SHOWN + 1];
    snprintf(where, sizeof where, "%s", reader->path);
    return json_parse(root, text, size, where, reader->error);
}

const struct cJSON *json_reader_member(const struct cJSON *object, const char *name) {
    const struct cJSON *found = json_member(object, name);
    return cJSON_IsNull(found) ? NULL : found;
}

int json_reader_text(const char **text, const struct cJSON *object, const char *name,
                     const struct json_reader *reader) {
    const struct cJSON *found = json_reader_member(object, name);
    *text = found ? found->valuestring : "";
    if (found && !cJSON_IsString(found))
        return fail(reader->error, "%.*s: \"%s\" is no text", JSON_READER_PATH_SHOWN, reader->path,
                    name);
    return 0;
}

int json_reader_flag(bool *flag, const struct cJSON *object, const char *name, bool otherwise,
                     const struct json_reader *reader) {
    const struct cJSON *found = json_reader_member(object, name);
    *flag = found ? cJSON_IsTrue(found) : otherwise;
    if (found && !cJSON_IsBool(found))
        return fail(reader->error, "%.*s: \"%s\" is neither true nor false", JSON_READER_PATH_SHOWN,
                    reader->path, name);
    return 0;
}

int json_reader_expect(const struct cJSON *object, const char *const *names, size_t count,
                       const char *what, const struct json_reader *reader) {
    const struct cJSON *child;
    if (!cJSON_IsObject(object))
        return fail(reader->error, "%.*s: its %s is no JSON object", JSON_READER_PATH_SHOWN,
                    reader->path, what);
    cJSON_ArrayForEach(child, object) {
        size_t i = 0;
        while (i < count && strcmp(child->string, names[i]) != 0) i++;
        if (i == count)
            return fail(reader->error,
                        "%.*s: its %s has \"%.60s\", which is not known here\nanother version of "
                        "this program may know it",
                        JSON_READER_PATH_SHOWN, reader->path, what, child->string);
    }
    return 0;
}
