#include "data/base/json.h"

#include "data/base/files.h"
#include "data/base/json_escape.h"
#include "data/base/utf8.h"

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cJSON copies a number into 64 bytes and would cut a longer one. */
enum { NUMBER_LENGTH_MAX = 60 };

struct scanner {
    const char *text;
    size_t length, at;
    size_t line, line_start;
    int depth;
    const char *file;
    struct json_place *places;
    struct error *error;
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

__attribute__((format(printf, 2, 3))) static int refuse(const struct scanner *s, const char *format,
                                                        ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    size_t column = 1;
    for (size_t i = s->line_start; i < s->at; i++)
        if (((unsigned char)s->text[i] & 0xc0) != 0x80) column++;
    return fail(s->error, "%s:%zu:%zu: %s", s->file, s->line, column, message);
}

/* The rest of the line, for "found ..."; never empty. */
static const char *found_here(const struct scanner *s, char excerpt[JSON_EXCERPT_MAX]) {
    if (s->at >= s->length) return strcpy(excerpt, "the end of the file");
    const char *start = s->text + s->at;
    const char *end = memchr(start, '\n', s->length - s->at);
    size_t length = end ? (size_t)(end - start) : s->length - s->at;
    while (length > 1 && strchr(" \t\r", start[length - 1])) length--;
    return json_text_excerpt(excerpt, start, length);
}

static int peek(const struct scanner *s) {
    return s->at < s->length ? (unsigned char)s->text[s->at] : -1;
}

static void skip_space(struct scanner *s) {
    for (; s->at < s->length && strchr(" \t\r\n", s->text[s->at]); s->at++)
        if (s->text[s->at] == '\n') {
            s->line++;
            s->line_start = s->at + 1;
        }
}

/* What people write where JSON wants something else. */
static int refuse_unexpected(const struct scanner *s, const char *expected) {
    char found[JSON_EXCERPT_MAX];
    found_here(s, found);
    switch (peek(s)) {
    case '/':
    case '#': return refuse(s, "found %s\nJSON has no comments: remove this one.", found);
    case '\'': return refuse(s, "found %s\nJSON strings stand in double quotes.", found);
    case -1: return refuse(s, "expected %s, found the end of the file.", expected);
    default: return refuse(s, "expected %s, found %s", expected, found);
    }
}

/* The four digits after \u; -1 if they are not there. */
static int scan_unicode(struct scanner *s) {
    int code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = json_hex_digit((char)peek(s));
        if (digit < 0) return -1;
        code = code * 16 + digit;
        s->at++;
    }
    return code;
}

static int scan_escape(struct scanner *s) {
    int c = peek(s);
    if (c != 'u') {
        if (c <= 0 || !strchr("\"\\/bfnrt", c))
            return refuse(s, "a backslash in a string is followed by one of \" \\ / b f n r t u;\n"
                             "write \\\\ for a backslash itself.");
        s->at++;
        return 0;
    }
    s->at++;
    int code = scan_unicode(s);
    if (code < 0) return refuse(s, "\\u in a string is followed by four hexadecimal digits.");
    if (code == 0) return refuse(s, "\\u0000, the NUL character, cannot be in a string.");
    if (code >= 0xdc00 && code <= 0xdfff) return refuse(s, "\\u%04x is half a character.", code);
    if (code < 0xd800 || code > 0xdbff) return 0;
    bool paired = s->at + 2 <= s->length && memcmp(s->text + s->at, "\\u", 2) == 0;
    if (paired) s->at += 2;
    int second = paired ? scan_unicode(s) : -1;
    if (second < 0xdc00 || second > 0xdfff)
        return refuse(s, "\\u%04x is half a character: its other half must follow.", code);
    return 0;
}

static int scan_string(struct scanner *s) {
    size_t start = s->at++;
    for (;;) {
        int c = peek(s);
        if (c < 0 || c == '\n' || c == '\r') {
            char found[JSON_EXCERPT_MAX];
            s->at = start;
            return refuse(s, "this string has no closing quote on its line: %s",
                          found_here(s, found));
        }
        if (c < ' ')
            return refuse(s, "a control character (code %d) in a string; write \\u%04x.", c,
                          (unsigned)c);
        s->at++;
        if (c == '"') return 0;
        if (c == '\\' && scan_escape(s)) return -1;
    }
}

static size_t skip_digits(struct scanner *s) {
    size_t start = s->at;
    while (peek(s) >= '0' && peek(s) <= '9') s->at++;
    return s->at - start;
}

static int scan_number(struct scanner *s) {
    char excerpt[JSON_EXCERPT_MAX];
    size_t start = s->at;
    if (peek(s) == '-') s->at++;
    bool zero = peek(s) == '0';
    size_t digits = skip_digits(s);
    bool valid = digits > 0 && !(zero && digits > 1);
    if (valid && peek(s) == '.') {
        s->at++;
        valid = skip_digits(s) > 0;
    }
    if (valid && (peek(s) == 'e' || peek(s) == 'E')) {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-') s->at++;
        valid = skip_digits(s) > 0;
    }
    size_t length = s->at - start;
    if (!valid) {
        s->at = start;
        for (length = 0; start + length < s->length; length++)
            if (strchr(",]} \t\r\n", s->text[start + length])) break;
        return refuse(s, "%s is not a JSON number; such as 10, -0.5 or 1e-3 are.",
                      json_text_excerpt(excerpt, s->text + start, length));
    }
    if (length > NUMBER_LENGTH_MAX) {
        s->at = start;
        return refuse(s, "a number of %zu characters; at most %d are read.", length,
                      (int)NUMBER_LENGTH_MAX);
    }
    return 0;
}

static int scan_word(struct scanner *s) {
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if (s->length - s->at >= length && memcmp(s->text + s->at, words[i], length) == 0) {
            s->at += length;
            return 0;
        }
    }
    return refuse_unexpected(s, "a value (a number, a \"string\", true, false, [ or {)");
}

static int scan_value(struct scanner *s, size_t line);

/* Between two members: 1 if another one follows, 0 at the end, -1 for an error. */
static int scan_comma(struct scanner *s, char close) {
    skip_space(s);
    if (peek(s) == close) {
        s->at++;
        return 0;
    }
    if (peek(s) != ',') return refuse_unexpected(s, close == '}' ? "a comma or }" : "a comma or ]");
    struct scanner comma = *s;
    s->at++;
    skip_space(s);
    if (peek(s) == close)
        return refuse(&comma, "a comma before %c: JSON has none after the last entry.", close);
    return 1;
}

static int scan_member(struct scanner *s) {
    if (peek(s) != '"') return refuse_unexpected(s, "a key in double quotes");
    size_t line = s->line;
    if (scan_string(s)) return -1;
    skip_space(s);
    if (peek(s) != ':') return refuse_unexpected(s, "a colon after the key");
    s->at++;
    skip_space(s);
    return scan_value(s, line);
}

/* An object or an array, behind its first byte up to the one that closes it. */
static int scan_members(struct scanner *s, char close) {
    skip_space(s);
    if (peek(s) == close) {
        s->at++;
        return 0;
    }
    int more = 1;
    while (more == 1) {
        if (close == '}' ? scan_member(s) : scan_value(s, s->line)) return -1;
        more = scan_comma(s, close);
    }
    return more;
}

static int scan_value(struct scanner *s, size_t line) {
    size_t start = s->at, index = arrlenu(s->places);
    struct json_place place = {.line = line, .start = start};
    arrput(s->places, place);

    int c = peek(s), status;
    if (c == '{' || c == '[') {
        if (s->depth == JSON_DEPTH_MAX)
            return refuse(s, "nested more than %d deep; a config has no such depth.",
                          (int)JSON_DEPTH_MAX);
        s->depth++;
        s->at++;
        status = scan_members(s, c == '{' ? '}' : ']');
        s->depth--;
    } else if (c == '"') {
        status = scan_string(s);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        status = scan_number(s);
    } else {
        status = scan_word(s);
    }
    s->places[index].length = s->at - start;
    return status;
}

/* Before the grammar: the text is UTF-8 without a mark and without NUL. */
static int check_bytes(struct scanner *s) {
    if (s->length >= 3 && memcmp(s->text, "\xef\xbb\xbf", 3) == 0)
        return refuse(s, "the file begins with a byte order mark.\n"
                         "Save it as UTF-8 without BOM.");
    if (s->length >= 2 &&
        (memcmp(s->text, "\xff\xfe", 2) == 0 || memcmp(s->text, "\xfe\xff", 2) == 0))
        return refuse(s, "the file is in UTF-16. Save it as UTF-8.");
    while (s->at < s->length) {
        char c = s->text[s->at];
        size_t bytes = utf8_character(s->text + s->at, s->length - s->at);
        if (c == '\0') return refuse(s, "a NUL byte: this is not a text file.");
        if (bytes == 0)
            return refuse(s, "byte 0x%02x is not UTF-8. Save the file as UTF-8.",
                          (unsigned)(unsigned char)c);
        s->at += bytes;
        if (c == '\n') {
            s->line++;
            s->line_start = s->at;
        }
    }
    s->at = 0;
    s->line = 1;
    s->line_start = 0;
    return 0;
}

static int scan_text(struct scanner *s) {
    if (check_bytes(s)) return -1;
    skip_space(s);
    if (s->at == s->length)
        return fail(s->error, "%s: the file is empty; the smallest config is {}.", s->file);
    if (scan_value(s, s->line)) return -1;
    skip_space(s);
    if (s->at < s->length) return refuse_unexpected(s, "nothing after the end of the config");
    return 0;
}

int json_text_scan(const char *text, size_t length, const char *file, struct json_place **places,
                   struct error *error) {
    struct scanner s = {
        .text = text, .length = length, .line = 1, .file = file, .places = *places, .error = error};
    int status = scan_text(&s);
    *places = s.places;
    return status;
}

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
