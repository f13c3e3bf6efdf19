#include "data/util/json.h"

#include "data/util/files.h"
#include "data/util/utf8.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stb/stb_ds.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { NUMBER_BYTES_MAX = 63 }; /* cJSON reads no more of a number */

/* State of the syntax check that runs before cJSON, which accepts invalid JSON and reports no
 * reason. */
struct check {
    const char *text, *at, *end;
    bool is_row; /* the text is a copy that may be changed */
    size_t items_max;
    uint32_t *items; /* stb_ds array: offsets of keys, or of values without a key, in order */
    uint32_t *long_numbers; /* stb_ds array: offsets of numbers too long for cJSON */
    char problem[400];
};

static bool refuse(struct check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse(struct check *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->problem, sizeof c->problem, format, arguments);
    va_end(arguments);
    return false;
}

/* Returns the rest of the line, for use in a message; never empty. */
static struct json_shown found_here(const struct check *c) {
    struct json_shown found = {"the end of the text"};
    if (c->at == c->end) return found;
    const char *end = memchr(c->at, '\n', (size_t)(c->end - c->at));
    if (!end) end = c->end;
    while (end > c->at + 1 && strchr(" \t\r", end[-1])) end--;
    json_text_excerpt(found.text, c->at, (size_t)(end - c->at));
    return found;
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static void skip_space(struct check *c) {
    while (c->at < c->end && is_space(*c->at)) c->at++;
}

/* Returns the code unit of a \uXXXX, or -1. */
static int code_unit(const char *at, const char *end) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    int code = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const char *digit = memchr(digits, at[i], sizeof digits - 1);
        if (!digit) return -1;
        code = code * 16 + (int)(digit - digits) % 16;
    }
    return code;
}

/* Checks one escape. \u0000 and unpaired surrogates are errors, except in a row, where they are
 * replaced. */
static bool check_escape(struct check *c) {
    const int code = code_unit(c->at, c->end);
    const int low = code >= 0xd800 && code < 0xdc00 ? code_unit(c->at + 6, c->end) : -1;
    const bool is_pair = low >= 0xdc00 && low < 0xe000;
    if (code < 0 && (c->end - c->at < 2 || !memchr("\"\\/bfnrt", c->at[1], 8)))
        return refuse(c, "a backslash in a string is followed by one of \" \\ / b f n r t or by u "
                         "and four hexadecimal digits; \\\\ is a backslash itself.");
    if (code == 0 || (code >= 0xd800 && code < 0xe000 && !is_pair)) {
        if (!c->is_row && code == 0)
            return refuse(c, "\\u0000, the NUL character, cannot be in a string.");
        if (!c->is_row)
            return refuse(c, "\\u%04x is half a character: its other half is missing.",
                          (unsigned)code);
        memcpy((char *)c->at, code == 0 ? JSON_ROW_NUL : "\\ufffd", 6);
    }
    c->at += is_pair ? 12 : code < 0 ? 2 : 6;
    return true;
}

static bool is_plain(unsigned char c) {
    return c >= ' ' && c < 0x80 && c != '"' && c != '\\';
}

static bool check_string(struct check *c) {
    const char *begin = c->at++;
    for (;;) {
        const char *at = c->at; /* a local copy, since most time is spent here */
        while (at < c->end && is_plain((unsigned char)*at)) at++;
        c->at = at;
        if (at == c->end || *at == '\n' || *at == '\r') break;
        const unsigned char byte = (unsigned char)*at;
        const size_t bytes = utf8_character(at, (size_t)(c->end - at));
        if (byte < ' ')
            return refuse(c, "a control character (code %d) in a string; write \\u%04x.", byte,
                          (unsigned)byte);
        if (bytes == 0)
            return refuse(c, "byte 0x%02x is not UTF-8. Save the file as UTF-8.", (unsigned)byte);
        if (byte == '\\' && !check_escape(c)) return false;
        if (byte != '\\') c->at += bytes;
        if (byte == '"') return true;
    }
    c->at = begin;
    return refuse(c, "this string has no closing quote on its line: %s", found_here(c).text);
}

/* Returns the end of the digits at `at`; NULL if `at` is NULL or there are none. */
static const char *digits_end(const char *at) {
    const size_t count = at ? strspn(at, "0123456789") : 0;
    return count ? at + count : NULL;
}

/* cJSON accepts more: zeros before a number, and a point at one of its ends. */
static bool is_number(const char *at, size_t length) {
    const char *const word_end = at + length;
    const char *first = at + (*at == '-'), *end = digits_end(first);
    if (end && *first == '0' && end > first + 1) return false;
    if (end && *end == '.') end = digits_end(end + 1);
    if (end && (*end == 'e' || *end == 'E'))
        end = digits_end(end + 1 + (end[1] == '+' || end[1] == '-'));
    return end == word_end;
}

static bool expected(struct check *c, const char *what) {
    const struct json_shown found = found_here(c);
    switch (c->at < c->end ? *c->at : ' ') {
    case '/':
    case '#': return refuse(c, "found %s\nJSON has no comments: remove this one.", found.text);
    case '\'': return refuse(c, "found %s\nJSON strings need double quotes.", found.text);
    case '\0': return refuse(c, "a NUL byte: this is not a text file.");
    default: return refuse(c, "expected %s, found %s", what, found.text);
    }
}

static bool is_name(const char *at, size_t length) {
    static const char *const names[] = {"true", "false", "null"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == length && memcmp(names[i], at, length) == 0) return true;
    return false;
}

/* Checks a number, true, false or null. */
static bool check_word(struct check *c) {
    char shown[JSON_EXCERPT_MAX];
    const char *end = c->at;
    while (end < c->end && !is_space(*end) && !strchr(",]}", *end)) end++;
    const size_t length = (size_t)(end - c->at);
    const char first = length ? *c->at : ' ';
    if (first == '-' || (first >= '0' && first <= '9')) {
        if (!is_number(c->at, length))
            return refuse(c, "%s is not a JSON number; such as 10, -0.5 or 1e-3 are.",
                          json_text_excerpt(shown, c->at, length));
        if (length > NUMBER_BYTES_MAX) arrput(c->long_numbers, (uint32_t)(c->at - c->text));
    } else if (!is_name(c->at, length)) {
        return expected(c, "a value (a number, a \"string\", true, false, [ or {)");
    }
    c->at = end;
    return true;
}

/* Counts an item of the tree, which begins here. */
static bool add_item(struct check *c) {
    if (arrlenu(c->items) == c->items_max)
        return refuse(c, "more than %zu values; so many are not read.", c->items_max);
    arrput(c->items, (uint32_t)(c->at - c->text));
    return true;
}

/* Returns the next character, a space at the end of the text. */
static char next_of(const struct check *c) {
    return c->at < c->end ? *c->at : ' ';
}

/* Checks the comma after a member, which another one must follow. */
static bool check_comma(struct check *c, char close) {
    const char *comma = c->at;
    if (next_of(c) != ',') return expected(c, close == '}' ? "a comma or }" : "a comma or ]");
    c->at++;
    skip_space(c);
    if (next_of(c) != close) return true;
    c->at = comma;
    return refuse(c, "a comma before %c: JSON has none after the last entry.", close);
}

/* Checks a key and its colon. */
static bool check_key(struct check *c) {
    if (next_of(c) != '"') return expected(c, "a key in double quotes");
    if (!add_item(c) || !check_string(c)) return false;
    skip_space(c);
    if (next_of(c) != ':') return expected(c, "a colon after the key");
    c->at++;
    skip_space(c);
    if (c->is_row) arrlast(c->items) = (uint32_t)(c->at - c->text);
    return true;
}

/* Checks the value at c->at, which is in `depth` objects and arrays. */
static bool check_value(struct check *c, int depth) {
    const char open = next_of(c), close = open == '{' ? '}' : ']';
    const int depth_max = c->is_row ? JSON_ROW_DEPTH_MAX : JSON_DEPTH_MAX;
    if (open == '"') return check_string(c);
    if (open != '{' && open != '[') return check_word(c);
    if (depth == depth_max)
        return refuse(c, "nested more than %d deep; so deep is not read.", depth_max);
    c->at++;
    skip_space(c);
    for (bool first = true; next_of(c) != close; first = false) {
        if (!first && !check_comma(c, close)) return false;
        if (!(open == '{' ? check_key(c) : add_item(c)) || !check_value(c, depth + 1)) return false;
        skip_space(c);
    }
    c->at++;
    return true;
}

static bool check_text(struct check *c) {
    const bool has_mark = strncmp(c->text, "\xef\xbb\xbf", 3) == 0;
    if (has_mark && c->is_row)
        return refuse(c, "found a byte order mark before the value; remove it.");
    if (has_mark)
        return refuse(c, "the file begins with a byte order mark.\nSave it as UTF-8 without BOM.");
    if (strncmp(c->text, "\xff\xfe", 2) == 0 || strncmp(c->text, "\xfe\xff", 2) == 0)
        return refuse(c, "the file is in UTF-16. Save it as UTF-8.");
    skip_space(c);
    if (c->at == c->end) return refuse(c, "the file is empty; the smallest object is {}.");
    if (!add_item(c) || !check_value(c, 0)) return false;
    skip_space(c);
    return c->at == c->end || expected(c, "nothing after the end of the value");
}

/* Returns the line of a position in the text, from 1, and the beginning of that line. */
static size_t line_of(const char *text, const char *position, const char **begin) {
    size_t line = 1;
    *begin = text;
    while ((text = memchr(*begin, '\n', (size_t)(position - *begin)))) line++, *begin = text + 1;
    return line;
}

/* Makes a message about the error at `at`. */
static int fail_at(const struct check *c, const char *where, size_t *column, struct error *error) {
    const char *begin, *at;
    const size_t line = line_of(c->text, c->at, &begin);
    for (*column = 1, at = begin; at < c->at; at++) *column += ((unsigned char)*at & 0xc0) != 0x80;
    return where ? fail(error, "%s:%zu:%zu: %s", where, line, *column, c->problem)
                 : fail(error, "%s", c->problem);
}

static int compare_keys(const void *a, const void *b) {
    const cJSON *left = *(const cJSON *const *)a, *right = *(const cJSON *const *)b;
    const int order = strcmp(left->string, right->string);
    return order ? order : left->valueint < right->valueint ? -1 : 1;
}

static bool check_keys(struct check *c, const cJSON *object) {
    const cJSON **members = NULL, *item;
    cJSON_ArrayForEach(item, object) arrput(members, item);
    const size_t count = arrlenu(members);
    if (count > 1) qsort(members, count, sizeof *members, compare_keys);
    size_t i = 1;
    while (i < count && strcmp(members[i - 1]->string, members[i]->string) != 0) i++;
    if (i < count) {
        c->at = c->text + members[i]->valueint;
        refuse(c, "\"%s\" appears twice; it was already on line %zu.",
               json_text_shown(members[i]->string).text, json_line(members[i - 1], c->text));
    }
    arrfree(members);
    return i >= count;
}

/* Stores source offsets in a tree, in document order, and checks for duplicate keys, except in a
 * row. *next is the offset of `item`. */
static bool finish_tree(struct check *c, cJSON *item, const uint32_t **next) {
    cJSON *child;
    item->valueint = (int)*(*next)++;
    cJSON_ArrayForEach(child, item) if (!finish_tree(c, child, next)) return false;
    return c->is_row || !cJSON_IsObject(item) || check_keys(c, item);
}

/* Overwrites a number by a shorter one of the same value, and spaces. */
static void shorten_number(char *number) {
    char *end, text[NUMBER_BYTES_MAX + 1];
    const double value = strtod(number, &end);
    const int length = isinf(value) ? snprintf(text, sizeof text, "%s1e999", value < 0 ? "-" : "")
                                    : snprintf(text, sizeof text, "%.17g", value);
    memset(number, ' ', (size_t)(end - number));
    memcpy(number, text, (size_t)length);
}

/* Returns the tree of a text that has been checked, or NULL if out of memory. */
static cJSON *make_tree(const struct check *c) {
    const size_t size = (size_t)(c->end - c->text);
    if (!c->long_numbers) return cJSON_ParseWithLength(c->text, size);
    char *copy = malloc(size + 1);
    if (!copy) return NULL;
    memcpy(copy, c->text, size);
    copy[size] = '\0';
    for (size_t i = 0; i < arrlenu(c->long_numbers); i++) shorten_number(copy + c->long_numbers[i]);
    cJSON *root = cJSON_ParseWithLength(copy, size);
    free(copy);
    return root;
}

static void close_check(struct check *c) {
    arrfree(c->items);
    arrfree(c->long_numbers);
}

/* Checks a text and parses it. */
static bool parse(struct cJSON **root, struct check *c) {
    *root = NULL;
    if (!check_text(c)) return false;
    *root = make_tree(c);
    if (!*root) return refuse(c, "out of memory");
    const uint32_t *next = c->items;
    if (finish_tree(c, *root, &next)) return true;
    cJSON_Delete(*root);
    *root = NULL;
    return false;
}

int json_parse(struct cJSON **root, const char *text, size_t size, const char *where,
               struct error *error) {
    return json_parse_limited(root, text, size, JSON_VALUES_MAX, where, error);
}

int json_parse_limited(struct cJSON **root, const char *text, size_t size, size_t values_max,
                       const char *where, struct error *error) {
    struct check c = {.text = text, .at = text, .end = text + size, .items_max = values_max};
    size_t column;
    assert(size <= INT32_MAX);
    const int status = parse(root, &c) ? 0 : fail_at(&c, where, &column, error);
    close_check(&c);
    return status;
}

int json_parse_row(struct cJSON **root, const char *row, size_t size, size_t *column,
                   struct error *error) {
    assert(size <= INT32_MAX);
    char *text = malloc(size + 1);
    struct check c = {.text = text, .at = text, .is_row = true, .items_max = JSON_VALUES_MAX};
    *root = NULL;
    *column = 1;
    if (!text) return fail_memory(error, "a row of JSON Lines");
    memcpy(text, row, size);
    text[size] = '\0';
    c.end = text + size;
    const int status = parse(root, &c) ? 0 : fail_at(&c, NULL, column, error);
    close_check(&c);
    free(text);
    return status;
}

size_t json_line(const struct cJSON *item, const char *text) {
    const char *begin;
    return line_of(text, text + item->valueint, &begin);
}

const char *json_source(const struct cJSON *item, const char *text, size_t *length) {
    const char *start = text + item->valueint;
    struct check c = {
        .text = text, .at = start, .end = start + strlen(start), .items_max = SIZE_MAX};
    if (item->string) { /* skip the key and its colon */
        check_string(&c);
        skip_space(&c);
        c.at++;
        skip_space(&c);
        start = c.at;
    }
    check_value(&c, 0);
    close_check(&c);
    *length = (size_t)(c.at - start);
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

int json_file_open_in(struct json_file *file, const char *directory, const char *name,
                      struct error *error) {
    char path[FILE_PATH_MAX];
    *file = (struct json_file){0};
    return file_path_join(path, directory, name, error) ? -1 : json_file_open(file, path, error);
}

int json_file_open_optional(struct json_file *file, const char *directory, const char *name,
                            struct error *error) {
    *file = (struct json_file){0};
    return file_exists_in(directory, name) ? json_file_open_in(file, directory, name, error) : 0;
}

void json_file_close(struct json_file *file) {
    free(file->text);
    cJSON_Delete(file->root);
    *file = (struct json_file){0};
}

const struct cJSON *json_member(const struct cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

const char *json_text(const struct cJSON *object, const char *key) {
    return cJSON_GetStringValue(json_member(object, key));
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
