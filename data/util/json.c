#include "data/util/json.h"

#include "data/util/files.h"
#include "data/util/json_escape.h"
#include "data/util/utf8.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stb/stb_ds.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An item of a tree. cJSON_Delete frees it through its first member. */
struct json_item {
    cJSON json;
    uint32_t begin, value; /* offsets of the key, if any, and of the value in the text */
};

const char *json_text_excerpt(char excerpt[JSON_EXCERPT_MAX], const char *text, size_t length) {
    size_t used = 0, at = 0;
    while (at < length) {
        size_t bytes = utf8_character(text + at, length - at);
        if (used + (bytes ? bytes : 1) > JSON_EXCERPT_MAX - 4) {
            memcpy(excerpt + used, "...", 4);
            return excerpt;
        }
        if (bytes > 1) memcpy(excerpt + used, text + at, bytes);
        else if (bytes == 0) excerpt[used] = '?';
        else excerpt[used] = (unsigned char)text[at] < ' ' || text[at] == 0x7f ? ' ' : text[at];
        used += bytes ? bytes : 1;
        at += bytes ? bytes : 1;
    }
    excerpt[used] = '\0';
    return excerpt;
}

struct json_shown json_text_shown(const char *text) {
    struct json_shown shown;
    json_text_excerpt(shown.text, text, strlen(text));
    return shown;
}

bool json_scan_refuse(struct json_scan *s, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->problem, sizeof s->problem, format, arguments);
    va_end(arguments);
    return false;
}

/* Returns the rest of the line, for "found ..."; never empty. */
static struct json_shown found_here(const struct json_scan *s) {
    struct json_shown found = {"the end of the text"};
    if (s->at == s->end) return found;
    const char *end = memchr(s->at, '\n', (size_t)(s->end - s->at));
    if (!end) end = s->end;
    while (end > s->at + 1 && strchr(" \t\r", end[-1])) end--;
    json_text_excerpt(found.text, s->at, (size_t)(end - s->at));
    return found;
}

bool json_scan_expected(struct json_scan *s, const char *expected) {
    const struct json_shown found = found_here(s);
    switch (s->at < s->end ? *s->at : ' ') {
    case '/':
    case '#':
        return json_scan_refuse(s, "found %s\nJSON has no comments: remove this one.", found.text);
    case '\'': return json_scan_refuse(s, "found %s\nJSON strings need double quotes.", found.text);
    case '\0': return json_scan_refuse(s, "a NUL byte: this is not a text file.");
    default: return json_scan_refuse(s, "expected %s, found %s", expected, found.text);
    }
}

char json_scan_peek(struct json_scan *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\r' || *s->at == '\t'))
        s->at++;
    return s->at < s->end ? *s->at : '\0';
}

static bool scan_escape(struct json_scan *s) {
    const char *start = s->at;
    const int code = json_escape_code(&s->at, s->end);
    if (code >= 0 && !(s->has_tree && (code == 0 || (code >= 0xd800 && code < 0xe000))))
        return true;
    s->at = start;
    if (code < 0)
        return json_scan_refuse(s,
                                "a backslash in a string is followed by one of \" \\ / b f n r t "
                                "or by u and four hexadecimal digits; \\\\ is a backslash itself.");
    if (code > 0)
        return json_scan_refuse(s, "\\u%04x is half a character: its other half is missing.",
                                (unsigned)code);
    return json_scan_refuse(s, "\\u0000, the NUL character, cannot be in a string.");
}

static bool is_plain(unsigned char c) {
    return c >= ' ' && c < 0x80 && c != '"' && c != '\\';
}

bool json_scan_string(struct json_scan *s, struct json_span *string) {
    string->begin = ++s->at;
    for (;;) {
        const char *at = s->at; /* a local copy, since most time is spent here */
        while (at < s->end && is_plain((unsigned char)*at)) at++;
        s->at = at;
        if (at == s->end || *at == '\n' || *at == '\r') break;
        const unsigned char c = (unsigned char)*at;
        if (c == '"') {
            string->end = s->at++;
            return true;
        }
        if (c < ' ')
            return json_scan_refuse(s, "a control character (code %d) in a string; write \\u%04x.",
                                    c, (unsigned)c);
        if (c == '\\') {
            if (!scan_escape(s)) return false;
            continue;
        }
        const size_t bytes = utf8_character(at, (size_t)(s->end - at));
        if (bytes == 0)
            return json_scan_refuse(s, "byte 0x%02x is not UTF-8. Save the file as UTF-8.",
                                    (unsigned)c);
        s->at += bytes;
    }
    s->at = string->begin - 1;
    return json_scan_refuse(s, "this string has no closing quote on its line: %s",
                            found_here(s).text);
}

static const char *skip_digits(const char *at, const char *end) {
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at;
}

static bool scan_number(struct json_scan *s) {
    char excerpt[JSON_EXCERPT_MAX];
    const char *first = s->at + (*s->at == '-'), *at = skip_digits(first, s->end);
    bool valid = at > first && !(*first == '0' && at > first + 1);
    if (valid && at < s->end && *at == '.') {
        first = at + 1;
        at = skip_digits(first, s->end);
        valid = at > first;
    }
    if (valid && at < s->end && (*at == 'e' || *at == 'E')) {
        first = at + 1 + (at + 1 < s->end && (at[1] == '+' || at[1] == '-'));
        at = skip_digits(first, s->end);
        valid = at > first;
    }
    if (valid) {
        s->at = at;
        return true;
    }
    for (at = s->at; at < s->end && !strchr(",]} \t\r\n", *at);) at++;
    return json_scan_refuse(s, "%s is not a JSON number; such as 10, -0.5 or 1e-3 are.",
                            json_text_excerpt(excerpt, s->at, (size_t)(at - s->at)));
}

static bool scan_word(struct json_scan *s, struct json_item *item) {
    static const struct {
        const char *text;
        int type;
    } words[] = {{"true", cJSON_True}, {"false", cJSON_False}, {"null", cJSON_NULL}};
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(words[i].text);
        if ((size_t)(s->end - s->at) < length || memcmp(s->at, words[i].text, length)) continue;
        s->at += length;
        if (item) item->json.type = words[i].type;
        return true;
    }
    return json_scan_expected(s, "a value (a number, a \"string\", true, false, [ or {)");
}

/* Adds an item that begins here to an object or array; returns NULL on failure. As in cJSON's own
 * trees, the first item's prev is the last item. */
static struct json_item *add_item(struct json_scan *s, struct json_item *parent) {
    struct json_item *item = s->value_count++ < s->values_max ? calloc(1, sizeof *item) : NULL;
    if (!item) {
        if (s->value_count > s->values_max)
            json_scan_refuse(s, "more than %zu values; so many are not read.", s->values_max);
        else json_scan_refuse(s, "out of memory");
        return NULL;
    }
    item->begin = (uint32_t)(s->at - s->text);
    if (!parent) return item;
    cJSON *first = parent->json.child;
    item->json.prev = first ? first->prev : &item->json;
    if (first) first->prev = first->prev->next = &item->json;
    else parent->json.child = &item->json;
    return item;
}

static bool take_string(struct json_scan *s, char **to, struct json_span string) {
    const size_t size = (size_t)(string.end - string.begin);
    *to = malloc(size + 1);
    if (!*to) return json_scan_refuse(s, "out of memory");
    memcpy(*to, string.begin, size);
    (*to)[json_unescape(*to, size)] = '\0';
    return true;
}

static int compare_keys(const void *a, const void *b) {
    const struct json_item *left = *(struct json_item *const *)a;
    const struct json_item *right = *(struct json_item *const *)b;
    const int order = strcmp(left->json.string, right->json.string);
    return order ? order : left->begin < right->begin ? -1 : 1;
}

static bool check_keys(struct json_scan *s, struct json_item *object) {
    arrsetlen(s->members, 0);
    for (cJSON *item = object->json.child; item; item = item->next)
        arrput(s->members, (struct json_item *)item);
    const size_t count = arrlenu(s->members);
    if (count > 1) qsort(s->members, count, sizeof *s->members, compare_keys);
    for (size_t i = 1; i < count; i++) {
        const cJSON *before = &s->members[i - 1]->json;
        if (strcmp(before->string, s->members[i]->json.string) != 0) continue;
        s->at = s->text + s->members[i]->begin;
        return json_scan_refuse(s, "\"%s\" appears twice; it was already on line %zu.",
                                json_text_shown(before->string).text, json_line(before, s->text));
    }
    return true;
}

bool json_scan_key(struct json_scan *s, struct json_span *key) {
    if (json_scan_peek(s) != '"') return json_scan_expected(s, "a key in double quotes");
    if (!json_scan_string(s, key)) return false;
    if (json_scan_peek(s) != ':') return json_scan_expected(s, "a colon after the key");
    s->at++;
    return true;
}

static bool scan_value(struct json_scan *s, struct json_item *item);

static bool scan_member(struct json_scan *s, struct json_item *parent, char close) {
    struct json_span key;
    struct json_item *item = NULL;
    if (parent && !(item = add_item(s, parent))) return false;
    if (close == '}' &&
        (!json_scan_key(s, &key) || (item && !take_string(s, &item->json.string, key))))
        return false;
    return scan_value(s, item);
}

/* Scans an object or an array. */
static bool scan_members(struct json_scan *s, struct json_item *parent, char close) {
    if (s->depth == s->depth_max)
        return json_scan_refuse(s, "nested more than %d deep; so deep is not read.", s->depth_max);
    s->depth++;
    s->at++;
    for (bool more = json_scan_peek(s) != close; more;) {
        if (!scan_member(s, parent, close)) return false;
        more = json_scan_peek(s) == ',';
        const char *comma = s->at;
        if (!more) break;
        s->at++;
        if (json_scan_peek(s) != close) continue;
        s->at = comma;
        return json_scan_refuse(s, "a comma before %c: JSON has none after the last entry.", close);
    }
    if (json_scan_peek(s) != close)
        return json_scan_expected(s, close == '}' ? "a comma or }" : "a comma or ]");
    s->at++;
    s->depth--;
    return !parent || close == ']' || check_keys(s, parent);
}

/* Scans a value, into item unless that is NULL. */
static bool scan_value(struct json_scan *s, struct json_item *item) {
    struct json_span string;
    const char c = json_scan_peek(s), *start = s->at;
    if (item) item->value = (uint32_t)(start - s->text);
    if (c == '{' || c == '[') {
        if (item) item->json.type = c == '{' ? cJSON_Object : cJSON_Array;
        return scan_members(s, item, c == '{' ? '}' : ']');
    }
    if (c == '"') {
        if (item) item->json.type = cJSON_String;
        return json_scan_string(s, &string) &&
               (!item || take_string(s, &item->json.valuestring, string));
    }
    if (c != '-' && (c < '0' || c > '9')) return scan_word(s, item);
    if (!scan_number(s)) return false;
    if (item) {
        item->json.type = cJSON_Number;
        cJSON_SetNumberHelper(&item->json, strtod(start, NULL));
    }
    return true;
}

bool json_scan_value(struct json_scan *s) {
    return scan_value(s, NULL);
}

static bool scan_text(struct json_scan *s, struct json_item *root) {
    if (strncmp(s->text, "\xef\xbb\xbf", 3) == 0)
        return json_scan_refuse(s, "the file begins with a byte order mark.\n"
                                   "Save it as UTF-8 without BOM.");
    if (strncmp(s->text, "\xff\xfe", 2) == 0 || strncmp(s->text, "\xfe\xff", 2) == 0)
        return json_scan_refuse(s, "the file is in UTF-16. Save it as UTF-8.");
    json_scan_peek(s);
    root->begin = (uint32_t)(s->at - s->text);
    if (s->at == s->end)
        return json_scan_refuse(s, "the file is empty; the smallest object is {}.");
    if (!scan_value(s, root)) return false;
    json_scan_peek(s);
    return s->at == s->end || json_scan_expected(s, "nothing after the end of the value");
}

/* Returns the line of a position in the text, from 1, and the beginning of that line. */
static size_t line_of(const char *text, const char *position, const char **begin) {
    size_t line = 1;
    *begin = text;
    while ((text = memchr(*begin, '\n', (size_t)(position - *begin)))) line++, *begin = text + 1;
    return line;
}

size_t json_scan_column(const struct json_scan *s) {
    const char *at;
    size_t column = 1;
    line_of(s->text, s->at, &at);
    for (; at < s->at; at++) column += ((unsigned char)*at & 0xc0) != 0x80;
    return column;
}

int json_parse(struct cJSON **root, const char *text, size_t size, const char *where,
               struct error *error) {
    return json_parse_limited(root, text, size, JSON_VALUES_MAX, where, error);
}

int json_parse_limited(struct cJSON **root, const char *text, size_t size, size_t values_max,
                       const char *where, struct error *error) {
    struct json_scan s = {.text = text,
                          .at = text,
                          .end = text + size,
                          .depth_max = JSON_DEPTH_MAX,
                          .has_tree = true,
                          .values_max = values_max};
    assert(size <= UINT32_MAX);
    struct json_item *item = add_item(&s, NULL);
    const bool valid = item && scan_text(&s, item);
    arrfree(s.members);
    *root = valid ? &item->json : NULL;
    if (valid) return 0;
    cJSON_Delete((cJSON *)item);
    const char *begin;
    return fail(error, "%s:%zu:%zu: %s", where, line_of(text, s.at, &begin), json_scan_column(&s),
                s.problem);
}

size_t json_line(const struct cJSON *item, const char *text) {
    const char *begin;
    return line_of(text, text + ((const struct json_item *)item)->begin, &begin);
}

const char *json_source(const struct cJSON *item, const char *text, size_t *length) {
    const char *start = text + ((const struct json_item *)item)->value;
    struct json_scan s = {
        .text = text, .at = start, .end = start + strlen(start), .depth_max = JSON_DEPTH_MAX};
    json_scan_value(&s);
    *length = (size_t)(s.at - start);
    return start;
}

int json_file_open(struct json_file *file, const char *path, struct error *error) {
    *file = (struct json_file){0};
    if (file_read_all(&file->text, &file->size, path, JSON_FILE_MAX_BYTES, error)) return -1;
    file_path_shown(file->where, path);
    int status = json_parse(&file->root, file->text, file->size, file->where, error);
    if (status == 0 && !cJSON_IsObject(file->root))
        status = fail(error, "%s: it holds no JSON object, {...}", file->where);
    if (status) json_file_close(file);
    return status;
}

void json_file_close(struct json_file *file) {
    free(file->text);
    cJSON_Delete(file->root);
    *file = (struct json_file){0};
}

const struct cJSON *json_member(const struct cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
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
