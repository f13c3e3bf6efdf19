#include "data/corpus/jsonl.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/utf8.h"

/* State of reading one row. Decoded texts go to a buffer first, so that a bad row stays unchanged.
 */
struct reading {
    char *row;
    char *texts; /* [used], never longer than the row */
    size_t used;
    size_t *column;
    const struct jsonl_others *others; /* or NULL */
    struct error *error;
};

bool jsonl_is_blank(const char *row, size_t size) {
    while (size > 0 && row[size - 1] && strchr(" \t\r\n", row[size - 1])) size--;
    return size == 0;
}

static int fail_at(struct reading *reading, const cJSON *item, const char *what) {
    *reading->column = (size_t)utf8_count(reading->row, (size_t)item->valueint) + 1;
    return fail(reading->error, "%s", what);
}

/* Fails because of a missing member, with the names of the first members that exist. */
static int fail_missing(struct reading *reading, const cJSON *object, const char *name) {
    char names[160] = "", what[400];
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        const size_t used = strlen(names);
        if (used + strlen(item->string) + 8 <= sizeof names)
            snprintf(names + used, sizeof names - used, "%s\"%s\"", used ? ", " : "", item->string);
    }
    snprintf(what, sizeof what, "there is no member \"%.100s\" (there is %s)", name,
             *names ? names : "none");
    return fail_at(reading, object, what);
}

/* Adds the text of a string or a boolean, with every JSON_ROW_NUL as the one byte it stands for. */
static void add_text(struct jsonl_member *member, const cJSON *value, struct reading *reading) {
    const char *text = cJSON_IsTrue(value) ? "true" : "false", *nul;
    if (cJSON_IsString(value)) text = value->valuestring;
    char *const begin = reading->texts + reading->used, *at = begin;
    for (; (nul = strstr(text, JSON_ROW_NUL)); text = nul + strlen(JSON_ROW_NUL)) {
        at = (char *)memcpy(at, text, (size_t)(nul - text)) + (nul - text);
        *at++ = '\0';
    }
    at = (char *)memcpy(at, text, strlen(text)) + strlen(text);
    member->text = reading->row + reading->used;
    member->size = (size_t)(at - begin);
    reading->used += member->size;
}

static int read_object(struct jsonl_member *members, int count, const cJSON *object,
                       struct reading *reading);

static bool is_named(const struct jsonl_member *member, const char *name) {
    return strcmp(name, member->name) == 0 ||
           (member->synonym && strcmp(name, member->synonym) == 0);
}

/* Passes on the members of a row, or of an object in a list, that are not read. */
static int take_others(struct jsonl_member *members, int count, const cJSON *object, bool in_list,
                       struct reading *reading) {
    const cJSON *item;
    if (!reading->others) return 0;
    cJSON_ArrayForEach(item, object) {
        int i = 0;
        while (i < count && !is_named(&members[i], item->string)) i++;
        if (i < count || reading->others->take(reading->others->context, in_list ? members : NULL,
                                               item, reading->error) == 0)
            continue;
        *reading->column = (size_t)utf8_count(reading->row, (size_t)item->valueint) + 1;
        return -1;
    }
    return 0;
}

/* Reads a list of objects. */
static int read_list(struct jsonl_member *list, const cJSON *array, struct reading *reading) {
    const cJSON *object;
    if (!cJSON_IsArray(array)) return fail_at(reading, array, "the member is not a list");
    list->text = reading->row + (array->valueint);
    const cJSON *first = cJSON_GetArrayItem(array, 0);
    if (list->or_of && cJSON_GetObjectItemCaseSensitive(first, list->or_of->name))
        list->of = list->or_of;
    arrsetlen(list->items, 0);
    cJSON_ArrayForEach(object, array) {
        struct jsonl_member *item = arraddnptr(list->items, JSONL_ITEM_MEMBERS);
        memcpy(item, list->of, JSONL_ITEM_MEMBERS * sizeof *item);
        if (!cJSON_IsObject(object))
            return fail_at(reading, object, "the list has an item that is not an object");
        if (take_others(item, JSONL_ITEM_MEMBERS, object, true, reading) ||
            read_object(item, JSONL_ITEM_MEMBERS, object, reading))
            return -1;
    }
    return 0;
}

static int read_object(struct jsonl_member *members, int count, const cJSON *object,
                       struct reading *reading) {
    for (int i = 0; i < count; i++) {
        struct jsonl_member *member = &members[i];
        const cJSON *value = NULL, *item;
        cJSON_ArrayForEach(item, object) {
            if (!is_named(member, item->string)) continue;
            if (value) return fail_at(reading, item, "the member appears twice");
            value = item;
        }
        if (member->optional && (!value || cJSON_IsNull(value))) {
            member->text = reading->row + reading->used;
            member->size = 0;
            continue;
        }
        if (!value) return fail_missing(reading, object, member->name);
        member->at = (size_t)value->valueint;
        if (member->kind == JSONL_STRING_OR_LIST && !cJSON_IsString(value) && !cJSON_IsArray(value))
            return fail_at(reading, value, "the member is neither a string nor a list");
        if (member->kind == JSONL_STRING_OR_LIST)
            member->kind = cJSON_IsArray(value) ? JSONL_LIST : JSONL_STRING;
        if (member->kind == JSONL_STRING && !cJSON_IsString(value))
            return fail_at(reading, value, "the member is not a string");
        if (member->kind == JSONL_BOOLEAN && !cJSON_IsBool(value))
            return fail_at(reading, value, "the member is not true or false");
        if (member->kind != JSONL_LIST) add_text(member, value, reading);
        else if (read_list(member, value, reading)) return -1;
    }
    return 0;
}

/* Returns the position after the string that begins at `at`, or `end` if it is not closed. */
static const char *string_end(const char *at, const char *end) {
    for (at++; at < end; at++) {
        if (*at == '"') return at + 1;
        if (*at == '\\' && at + 1 < end) at++;
    }
    return end;
}

/* Returns the bit of the name that a key in quotes spells, or 0. */
static unsigned name_bit(const char *key, size_t size, const char *const *names, int count) {
    struct error ignored;
    size_t column;
    cJSON *root;
    unsigned bit = 0;
    json_parse_row(&root, key, size, &column, &ignored);
    const char *text = cJSON_GetStringValue(root);
    for (int i = 0; text && i < count; i++)
        if (strcmp(text, names[i]) == 0) bit = 1U << i;
    cJSON_Delete(root);
    return bit;
}

unsigned jsonl_names(const char *row, size_t size, const char *const *names, int count) {
    const char *at = row, *const end = row + size;
    unsigned found = 0;
    int depth = 0;
    while (at < end) {
        const char *const begin = at++;
        if (*begin != '"') {
            depth += (*begin == '{' || *begin == '[') - (*begin == '}' || *begin == ']');
            if (depth <= 0 && (*begin == '}' || *begin == ']')) break;
            continue;
        }
        at = string_end(begin, end);
        const char *colon = at;
        while (colon < end && *colon && strchr(" \t\r\n", *colon)) colon++;
        if (depth == 1 && colon < end && *colon == ':')
            found |= name_bit(begin, (size_t)(at - begin), names, count);
    }
    return found;
}

int jsonl_row(char *row, size_t size, struct jsonl_member *members, int count, size_t *column,
              struct error *error) {
    struct reading reading = {row, malloc(size + 1), 0, column, members->others, error};
    cJSON *root;
    assert(count > 0);
    int status = json_parse_row(&root, row, size, column, error);
    if (status == 0 && !reading.texts) status = fail_memory(error, "a row of JSON Lines");
    if (status == 0 && !cJSON_IsObject(root))
        status = fail_at(&reading, root, "the row is not an object");
    if (status == 0) status = read_object(members, count, root, &reading);
    if (status == 0) status = take_others(members, count, root, false, &reading);
    if (status == 0) memcpy(row, reading.texts, reading.used);
    free(reading.texts);
    cJSON_Delete(root);
    return status;
}
