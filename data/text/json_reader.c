#include "data/text/json_reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/base/utf8.h"

int json_reader_fail(const struct json_reader *reader, const char *format, ...) {
    char text[ERROR_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return fail(reader->error, "%.*s%s", JSON_READER_PATH_SHOWN, reader->path, text);
}

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

int json_reader_parse(struct cJSON **root, const struct json_reader *reader) {
    const char *text = reader->text;
    const size_t size = reader->size;
    *root = NULL;
    if (*skip_space(text) == '\0' && strlen(text) == size)
        return json_reader_fail(reader, " is empty");
    if (!utf8_valid(text, size))
        return json_reader_fail(reader, " is not UTF-8 text\nis it the right file?");
    const char *end = find_nul(text, size);
    if (end)
        return json_reader_fail(reader, ", line %zu: a character NUL\nno token holds one",
                                line_of(text, end));
    *root = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (*root && *(end = skip_space(end)) == '\0') return 0;
    cJSON_Delete(*root);
    *root = NULL;
    return json_reader_fail(reader, ", line %zu: this is not JSON\nis the file whole?",
                            line_of(text, end));
}

int json_reader_member(const struct cJSON **found, const struct cJSON *object, const char *name,
                       const struct json_reader *reader) {
    *found = NULL;
    const struct cJSON *child;
    if (!cJSON_IsObject(object)) return 0;
    cJSON_ArrayForEach(child, object) {
        if (strcmp(child->string, name) != 0) continue;
        if (*found) return json_reader_fail(reader, ": \"%s\" stands there twice", name);
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
        return json_reader_fail(reader, ": \"%s\" is no text", name);
    if (found) *text = found->valuestring;
    return 0;
}

int json_reader_flag(bool *flag, const struct cJSON *object, const char *name, bool otherwise,
                     const struct json_reader *reader) {
    const struct cJSON *found;
    *flag = otherwise;
    if (json_reader_member(&found, object, name, reader)) return -1;
    if (found && !cJSON_IsBool(found))
        return json_reader_fail(reader, ": \"%s\" is neither true nor false", name);
    if (found) *flag = cJSON_IsTrue(found);
    return 0;
}

/* Whether `name` is one of the words of `names`. */
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
                ": its %s has \"%.60s\", which is not known here\nanother version of "
                "this program may know it",
                what, child->string);
    }
    return 0;
}
