#include "data/corpus/jsonl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

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

static bool scan_object(struct json_scan *scan, struct jsonl_member *members, int count);

/* Scans a list of objects. */
static bool scan_list(struct json_scan *scan, struct jsonl_member *list) {
    if (json_scan_peek(scan) != '[') return json_scan_refuse(scan, "the member is not a list");
    scan->at++;
    arrsetlen(list->items, 0);
    for (bool more = json_scan_peek(scan) != ']'; more;) {
        if (json_scan_peek(scan) != '{')
            return json_scan_refuse(scan, "the list has an item that is not an object");
        struct jsonl_member *item = arraddnptr(list->items, JSONL_MEMBERS_MAX);
        memcpy(item, list->of, JSONL_MEMBERS_MAX * sizeof *item);
        if (!scan_object(scan, item, JSONL_MEMBERS_MAX)) return false;
        more = json_scan_peek(scan) == ',';
        if (more) scan->at++;
    }
    if (json_scan_peek(scan) != ']') return json_scan_expected(scan, "a comma or ]");
    scan->at++;
    return true;
}

/* Scans the value of a member, and leaves its escapes as they are. */
static bool scan_member(struct json_scan *scan, struct jsonl_member *member) {
    const char first = json_scan_peek(scan);
    struct json_span span = {scan->at, NULL};
    if (member->kind == JSONL_LIST) {
        if (!scan_list(scan, member)) return false;
    } else if (member->kind == JSONL_STRING) {
        if (first != '"') return json_scan_refuse(scan, "the member is not a string");
        if (!json_scan_string(scan, &span)) return false;
    } else {
        if (first != 't' && first != 'f')
            return json_scan_refuse(scan, "the member is not true or false");
        if (!json_scan_value(scan)) return false;
    }
    if (!span.end) span.end = scan->at;
    member->text = (char *)span.begin; /* jsonl_row decodes it in place */
    member->size = (size_t)(span.end - span.begin);
    return true;
}

/* Scans an object with these members, each of which has the text NULL so far. */
static bool scan_object(struct json_scan *scan, struct jsonl_member *members, int count) {
    const char first = json_scan_peek(scan), *const begin = scan->at;
    struct json_span key;
    char names[160] = "";
    if (first != '{') return json_scan_refuse(scan, "the row is not an object");
    scan->at++;
    for (bool more = json_scan_peek(scan) != '}'; more;) {
        json_scan_peek(scan);
        const char *name = scan->at;
        if (!json_scan_key(scan, &key)) return false;
        list_name(names, &key);
        int wanted = 0;
        while (wanted < count && !is_field(&key, members[wanted].name)) wanted++;
        if (wanted < count && members[wanted].text) {
            scan->at = name;
            return json_scan_refuse(scan, "the member appears twice");
        }
        if (!(wanted < count ? scan_member(scan, &members[wanted]) : json_scan_value(scan)))
            return false;
        more = json_scan_peek(scan) == ',';
        if (more) scan->at++;
    }
    if (json_scan_peek(scan) != '}') return json_scan_expected(scan, "a comma or }");
    scan->at++;
    for (int i = 0; i < count; i++)
        if (!members[i].text) {
            scan->at = begin;
            return json_scan_refuse(scan, "there is no member \"%.100s\" (there is %s)",
                                    members[i].name, *names ? names : "none");
        }
    return true;
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

/* Decodes the escapes of strings. */
static void decode(struct jsonl_member *members, size_t count) {
    for (size_t i = 0; i < count; i++) {
        struct jsonl_member *member = &members[i];
        if (member->kind == JSONL_STRING) member->size = json_unescape(member->text, member->size);
        else if (member->kind == JSONL_LIST) decode(member->items, arrlenu(member->items));
    }
}

int jsonl_row(char *row, size_t size, struct jsonl_member *members, int count, size_t *column,
              struct error *error) {
    struct json_scan scan = scan_of(row, size);
    assert(count <= JSONL_MEMBERS_MAX);
    for (int i = 0; i < count; i++) members[i].text = NULL;
    bool is_good = scan_object(&scan, members, count);
    if (is_good) {
        json_scan_peek(&scan);
        is_good = scan.at == scan.end || json_scan_refuse(&scan, "something follows the object");
    }
    *column = json_scan_column(&scan);
    if (!is_good) return fail(error, "%s", scan.problem);
    decode(members, (size_t)count);
    return 0;
}
