#include "data/text/jsonl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "data/base/json_escape.h"
#include "data/base/utf8.h"

enum { DEPTH_MAX = 256 };

struct span {
    const char *begin, *end;
};

struct scan {
    const char *at, *end;
    const char *problem; /* what is wrong at `at`, once something is */
    int depth;
    char names[160]; /* the first members, for the message that the wanted one is missing */
};

static bool wrong(struct scan *scan, const char *problem) {
    scan->problem = problem;
    return false;
}

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool jsonl_is_blank(const char *row, size_t size) {
    while (size > 0 && is_space(row[size - 1])) size--;
    return size == 0;
}

/* The next byte that is no white space, or 0 at the end. */
static char peek(struct scan *scan) {
    while (scan->at < scan->end && is_space(*scan->at)) scan->at++;
    return scan->at < scan->end ? *scan->at : 0;
}

static bool expect(struct scan *scan, char wanted, const char *problem) {
    if (peek(scan) != wanted || scan->at == scan->end)
        return wrong(scan, scan->at == scan->end ? "the row ends inside of the object" : problem);
    scan->at++;
    return true;
}

/* Behind a backslash. */
static bool scan_escape(struct scan *scan) {
    const char *bad = "an unknown escape; known are \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX";
    if (scan->at == scan->end) return wrong(scan, "the row ends inside of a string");
    if (*scan->at == 0 || !strchr("\"\\/bfnrtu", *scan->at)) return wrong(scan, bad);
    if (*scan->at++ != 'u') return true;
    for (int i = 0; i < 4; i++, scan->at++)
        if (scan->at == scan->end || json_hex_digit(*scan->at) < 0)
            return wrong(scan, "\\u needs four hexadecimal digits");
    return true;
}

static bool scan_string(struct scan *scan, struct span *string) {
    string->begin = ++scan->at;
    while (scan->at < scan->end) {
        const unsigned char c = (unsigned char)*scan->at;
        if (c == '"') {
            string->end = scan->at++;
            return true;
        }
        if (c < 0x20)
            return wrong(scan, "a control byte in a string; it must be written as \\uXXXX");
        if (c < 0x80) {
            scan->at++;
            if (c == '\\' && !scan_escape(scan)) return false;
            continue;
        }
        const size_t bytes = utf8_character(scan->at, (size_t)(scan->end - scan->at));
        if (bytes == 0) return wrong(scan, "a byte that is not UTF-8");
        scan->at += bytes;
    }
    return wrong(scan, "the row ends inside of a string");
}

static bool scan_digits(struct scan *scan) {
    if (scan->at == scan->end || !is_digit(*scan->at)) return wrong(scan, "a digit is missing");
    while (scan->at < scan->end && is_digit(*scan->at)) scan->at++;
    return true;
}

static bool scan_number(struct scan *scan) {
    if (*scan->at == '-') scan->at++;
    if (scan->at < scan->end && *scan->at == '0') scan->at++;
    else if (!scan_digits(scan)) return false;
    if (scan->at < scan->end && *scan->at == '.') {
        scan->at++;
        if (!scan_digits(scan)) return false;
    }
    if (scan->at < scan->end && (*scan->at | 0x20) == 'e') {
        scan->at++;
        if (scan->at < scan->end && (*scan->at == '+' || *scan->at == '-')) scan->at++;
        return scan_digits(scan);
    }
    return true;
}

static bool scan_word(struct scan *scan) {
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(words[i]);
        if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, words[i], length)) continue;
        scan->at += length;
        return true;
    }
    return wrong(scan, "no JSON value");
}

static bool scan_value(struct scan *scan);

/* The rest of an object or array, behind its first byte. */
static bool scan_members(struct scan *scan, char end) {
    struct span key;
    if (++scan->depth > DEPTH_MAX) return wrong(scan, "too many objects and arrays in each other");
    if (peek(scan) == end) scan->at++;
    else
        for (;;) {
            if (end == '}') {
                if (peek(scan) != '"') return wrong(scan, "a name in quotes is missing");
                if (!scan_string(scan, &key) || !expect(scan, ':', "a : is missing")) return false;
            }
            if (!scan_value(scan)) return false;
            if (peek(scan) != ',') {
                if (!expect(scan, end, "a , or the closing bracket is missing")) return false;
                break;
            }
            scan->at++;
        }
    scan->depth--;
    return true;
}

static bool scan_value(struct scan *scan) {
    struct span string;
    const char first = peek(scan);
    if (scan->at == scan->end) return wrong(scan, "the row ends inside of the object");
    if (first == '"') return scan_string(scan, &string);
    if (first == '-' || is_digit(first)) return scan_number(scan);
    if (first != '{' && first != '[') return scan_word(scan);
    scan->at++;
    return scan_members(scan, first == '{' ? '}' : ']');
}

static bool is_field(const struct span *key, const char *field) {
    size_t left = strlen(field);
    for (const char *at = key->begin; at < key->end;) {
        char character[4] = {*at};
        size_t bytes = 1;
        if (*at == '\\') bytes = json_unescape(&at, key->end, character);
        else at++;
        if (bytes > left || memcmp(field, character, bytes) != 0) return false;
        field += bytes;
        left -= bytes;
    }
    return left == 0;
}

static void remember_name(struct scan *scan, const struct span *key) {
    const size_t used = strlen(scan->names), size = (size_t)(key->end - key->begin);
    if (used + size + 8 > sizeof scan->names) return;
    snprintf(scan->names + used, sizeof scan->names - used, "%s\"%.*s\"", used ? ", " : "",
             (int)size, key->begin);
}

/* The name of a member and the colon behind it; *begin is where it begins. */
static bool scan_name(struct scan *scan, struct span *key, const char **begin) {
    if (peek(scan) != '"') return wrong(scan, "a name in quotes is missing");
    *begin = scan->at;
    return scan_string(scan, key) && expect(scan, ':', "a : is missing");
}

/* The object of a row. values [count]: begin stays NULL where there is no such member. */
static bool scan_row(struct scan *scan, const struct jsonl_member *members, int count,
                     struct span *values) {
    struct span key;
    const char *name;
    if (peek(scan) != '{') return wrong(scan, "the row is no object");
    scan->at++;
    for (bool more = peek(scan) != '}'; more;) {
        if (!scan_name(scan, &key, &name)) return false;
        remember_name(scan, &key);
        int wanted = 0;
        while (wanted < count && !is_field(&key, members[wanted].name)) wanted++;
        if (wanted < count && values[wanted].begin) {
            scan->at = name;
            return wrong(scan, "the member is there twice");
        }
        if (wanted < count && peek(scan) != '"') return wrong(scan, "the member is no string");
        if (wanted < count ? !scan_string(scan, &values[wanted]) : !scan_value(scan)) return false;
        more = peek(scan) == ',';
        if (more) scan->at++;
    }
    if (!expect(scan, '}', "a , or the closing bracket is missing")) return false;
    peek(scan);
    return scan->at == scan->end || wrong(scan, "something follows the object");
}

bool jsonl_has(const char *row, size_t size, const char *name) {
    struct scan scan = {.at = row, .end = row + size};
    struct span key;
    const char *begin;
    if (peek(&scan) != '{') return false;
    do {
        scan.at++;
        if (!scan_name(&scan, &key, &begin)) return false;
        if (is_field(&key, name)) return true;
    } while (scan_value(&scan) && peek(&scan) == ',');
    return false;
}

static size_t characters(const char *begin, const char *end) {
    size_t count = 0;
    for (; begin < end; begin++) count += ((unsigned char)*begin & 0xc0) != 0x80;
    return count;
}

int jsonl_row(char *row, size_t size, struct jsonl_member *members, int count, size_t *column,
              struct error *error) {
    struct scan scan = {.at = row, .end = row + size};
    struct span values[JSONL_MEMBERS_MAX] = {0};
    assert(count <= JSONL_MEMBERS_MAX);
    *column = 1;
    if (!scan_row(&scan, members, count, values)) {
        *column = characters(row, scan.at) + 1;
        return fail(error, "%s", scan.problem);
    }
    for (int i = 0; i < count; i++)
        if (!values[i].begin)
            return fail(error, "there is no member \"%.100s\" (there is %s)", members[i].name,
                        *scan.names ? scan.names : "none");
    for (int i = 0; i < count; i++) {
        members[i].text = row + (values[i].begin - row);
        members[i].size =
            json_unescape_all(members[i].text, (size_t)(values[i].end - values[i].begin));
    }
    return 0;
}
