#include "data/corpus/jsonl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "data/util/utf8.h"

enum { DEPTH_MAX = 256 };

static struct json_scan scan_of(const char *row, size_t size) {
    return (struct json_scan){.text = row, .at = row, .end = row + size, .depth_max = DEPTH_MAX};
}

bool jsonl_is_blank(const char *row, size_t size) {
    struct json_scan scan = scan_of(row, size);
    json_scan_peek(&scan);
    return scan.at == scan.end;
}

static bool is_field(const struct json_span *key, const char *field) {
    size_t left = strlen(field);
    for (const char *at = key->begin; at < key->end;) {
        char character[4] = {*at};
        size_t bytes = 1;
        if (*at == '\\') bytes = utf8_write(character, json_escape_character(&at, key->end));
        else at++;
        if (bytes > left || memcmp(field, character, bytes) != 0) return false;
        field += bytes;
        left -= bytes;
    }
    return left == 0;
}

/* Collects the first names of a row, for the message about a missing member. */
static void list_name(char names[160], const struct json_span *key) {
    const size_t used = strlen(names), size = (size_t)(key->end - key->begin);
    if (used + size + 8 > 160) return;
    snprintf(names + used, 160 - used, "%s\"%.*s\"", used ? ", " : "", (int)size, key->begin);
}

/* Parses the object of a row. values [count]: `begin` stays NULL for a missing member. */
static bool scan_row(struct json_scan *scan, const struct jsonl_member *members, int count,
                     struct json_span *values, char names[160]) {
    struct json_span key;
    if (json_scan_peek(scan) != '{') return json_scan_refuse(scan, "the row is not an object");
    scan->at++;
    for (bool more = json_scan_peek(scan) != '}'; more;) {
        json_scan_peek(scan);
        const char *name = scan->at;
        if (!json_scan_key(scan, &key)) return false;
        list_name(names, &key);
        int wanted = 0;
        while (wanted < count && !is_field(&key, members[wanted].name)) wanted++;
        if (wanted < count && values[wanted].begin) {
            scan->at = name;
            return json_scan_refuse(scan, "the member appears twice");
        }
        if (wanted < count && json_scan_peek(scan) != '"')
            return json_scan_refuse(scan, "the member is not a string");
        if (!(wanted < count ? json_scan_string(scan, &values[wanted]) : json_scan_value(scan)))
            return false;
        more = json_scan_peek(scan) == ',';
        if (more) scan->at++;
    }
    if (json_scan_peek(scan) != '}') return json_scan_expected(scan, "a comma or }");
    scan->at++;
    json_scan_peek(scan);
    return scan->at == scan->end || json_scan_refuse(scan, "something follows the object");
}

bool jsonl_has(const char *row, size_t size, const char *name) {
    struct json_scan scan = scan_of(row, size);
    struct json_span key;
    if (json_scan_peek(&scan) != '{') return false;
    do {
        scan.at++;
        if (!json_scan_key(&scan, &key)) return false;
        if (is_field(&key, name)) return true;
    } while (json_scan_value(&scan) && json_scan_peek(&scan) == ',');
    return false;
}

int jsonl_row(char *row, size_t size, struct jsonl_member *members, int count, size_t *column,
              struct error *error) {
    struct json_scan scan = scan_of(row, size);
    struct json_span values[JSONL_MEMBERS_MAX] = {0};
    char names[160] = "";
    assert(count <= JSONL_MEMBERS_MAX);
    *column = 1;
    if (!scan_row(&scan, members, count, values, names)) {
        *column = json_scan_column(&scan);
        return fail(error, "%s", scan.problem);
    }
    for (int i = 0; i < count; i++)
        if (!values[i].begin)
            return fail(error, "there is no member \"%.100s\" (there is %s)", members[i].name,
                        *names ? names : "none");
    for (int i = 0; i < count; i++) {
        members[i].text = row + (values[i].begin - row);
        members[i].size = json_unescape(members[i].text, (size_t)(values[i].end - values[i].begin));
    }
    return 0;
}
