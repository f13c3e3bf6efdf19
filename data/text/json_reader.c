#include "data/text/json_reader.h"

#include <string.h>

#include <cjson/cJSON.h>

#include "data/base/utf8.h"

static size_t line_of(const char *text, const char *place) {
    size_t line = 1;
    while ((text = memchr(text, '\n', (size_t)(place - text)))) line++, text++;
    return line;
}

/* \u0000, which would end strings early. In JSON backslashes stand in strings only. */
static const char *find_nul(const char *text, size_t size) {
    const char *raw = memchr(text, '\0', size);
    if (raw) return raw;
    for (const char *at = text; (at = strchr(at, '\\')); at += 2) {
        if (strncmp(at, "\\u0000", 6) == 0) return at;
        if (at[1] == '\0') break;
    }
    return NULL;
}

static const char *skip_space(const char *text) {
    return text + strspn(text, " \t\r\n");
}

int json_reader_parse(struct cJSON **root, const struct json_reader *reader, const char *text,
                      size_t size) {
    *root = NULL;
    if (*skip_space(text) == '\0' && strlen(text) == size)
        return fail(reader->error, "%.*s is empty", JSON_READER_PATH_SHOWN, reader->path);
    if (!utf8_valid(text, size))
        return fail(reader->error, "%.*s is not UTF-8 text\nis it the right file?",
                    JSON_READER_PATH_SHOWN, reader->path);
    const char *end = find_nul(text, size);
    if (end)
        return fail(reader->error, "%.*s, line %zu: a character NUL\nno token holds one",
                    JSON_READER_PATH_SHOWN, reader->path, line_of(text, end));
    *root = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (*root && *(end = skip_space(end)) == '\0') return 0;
    cJSON_Delete(*root);
    *root = NULL;
    return fail(reader->error, "%.*s, line %zu: this is not JSON\nis the file whole?",
                JSON_READER_PATH_SHOWN, reader->path, line_of(text, end));
}

int json_reader_member(const struct cJSON **found, const struct cJSON *object, const char *name,
                       const struct json_reader *reader) {
    *found = NULL;
    const struct cJSON *child;
    if (!cJSON_IsObject(object)) return 0;
    cJSON_ArrayForEach(child, object) {
        if (strcmp(child->string, name) != 0) continue;
        if (*found)
            return fail(reader->error, "%.*s: \"%s\" stands there twice", JSON_READER_PATH_SHOWN,
                        reader->path, name);
        *found = child;
    }
    if (*found && cJSON_IsNull(*found)) *found = NULL;
    return 0;
}

int json_reader_text(const char **text, const struct cJSON *object, const char *name,
                     const struct json_reader *reader) {
    const struct cJSON *found;
    *text = "";
    if (json_reader_member(&found, object, name, reader)) return -1;
    if (found && !cJSON_IsString(found))
        return fail(reader->error, "%.*s: \"%s\" is no text", JSON_READER_PATH_SHOWN, reader->path,
                    name);
    if (found) *text = found->valuestring;
    return 0;
}

int json_reader_flag(bool *flag, const struct cJSON *object, const char *name, bool otherwise,
                     const struct json_reader *reader) {
    const struct cJSON *found;
    *flag = otherwise;
    if (json_reader_member(&found, object, name, reader)) return -1;
    if (found && !cJSON_IsBool(found))
        return fail(reader->error, "%.*s: \"%s\" is neither true nor false", JSON_READER_PATH_SHOWN,
                    reader->path, name);
    if (found) *flag = cJSON_IsTrue(found);
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
