#include "data/tokenize/json_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"
#include "data/tokenize/vocabulary.h"

int json_reader_fail(const struct json_reader *reader, const char *format, ...) {
    char text[ERROR_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return fail(reader->error, "%.*s%s", JSON_READER_PATH_SHOWN, reader->path, text);
}

int json_reader_parse(struct cJSON **root, const struct json_reader *reader) {
    char where[JSON_READER_PATH_SHOWN + 1];
    snprintf(where, sizeof where, "%s", reader->path);
    return json_parse(root, reader->text, reader->size, where, reader->error);
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
        return json_reader_fail(reader, ": \"%s\" is no text", name);
    return 0;
}

int32_t json_reader_token(const struct cJSON *number) {
    const double value = cJSON_IsNumber(number) ? number->valuedouble : -1;
    return value >= 0 && value < VOCABULARY_MAX && value == (int32_t)value ? (int32_t)value : -1;
}

int json_reader_flag(bool *flag, const struct cJSON *object, const char *name, bool otherwise,
                     const struct json_reader *reader) {
    const struct cJSON *found = json_reader_member(object, name);
    *flag = found ? cJSON_IsTrue(found) : otherwise;
    if (found && !cJSON_IsBool(found))
        return json_reader_fail(reader, ": \"%s\" is neither true nor false", name);
    return 0;
}

/* True if `name` is one of the space-separated words of `names`. */
static bool is_word(const char *names, const char *name) {
    const size_t length = strlen(name);
    for (const char *at = names; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && memcmp(at, name, length) == 0) return true;
    return false;
}

int json_reader_expect(const struct cJSON *object, const char *names, const char *what,
                       const struct json_reader *reader) {
    const struct cJSON *child;
    if (!cJSON_IsObject(object))
        return json_reader_fail(reader, ": its %s is no JSON object", what);
    cJSON_ArrayForEach(child, object) {
        if (!is_word(names, child->string))
            return json_reader_fail(
                reader,
                ": its %s has \"%.60s\", which is not supported\nanother version of "
                "this program may support it",
                what, child->string);
    }
    return 0;
}
