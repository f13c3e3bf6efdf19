/* Parses one row of JSON Lines: an object of which some members are read.
 *
 * Parsing is strict (RFC 8259): one object with nothing but white space around it, UTF-8, no
 * control bytes in strings, objects and arrays nested at most 256 deep, and at most 4,000,000
 * values. Escapes are decoded, including \u0000 and surrogate pairs. An unpaired surrogate, which
 * is not a character, becomes U+FFFD. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "data/util/error.h"

enum { JSONL_MEMBERS_MAX = 3, JSONL_ITEM_MEMBERS = 2 };

enum jsonl_kind { JSONL_STRING, JSONL_BOOLEAN, JSONL_LIST, JSONL_STRING_OR_LIST };

struct cJSON;
struct jsonl_member;

/* Takes the members of a row that are not read, with object NULL, and those of an object in its
 * lists, with object [JSONL_ITEM_MEMBERS]. take returns -1, with a message, if the row is bad. */
struct jsonl_others {
    int (*take)(void *context, struct jsonl_member *object, const struct cJSON *value,
                struct error *error);
    void *context;
};

/* A member to read, and its text once found. */
struct jsonl_member {
    const char *name;
    const char *synonym;  /* another name of the same member, or NULL */
    enum jsonl_kind kind; /* JSONL_STRING_OR_LIST becomes what the member is */
    bool optional;        /* may be absent or null: then an empty string */
    bool untrained;       /* a content that does not count in the loss; set by others */
    size_t at;            /* offset of the value in the row before it was overwritten, in bytes */
    char *text;           /* [size], inside the row; "true" or "false" of a boolean */
    size_t size;
    /* A list holds only objects, each with JSONL_ITEM_MEMBERS members like these. */
    const struct jsonl_member *of;
    /* Other members that the objects may have instead, or NULL: if the first object has the first
     * of these, they become `of`. */
    const struct jsonl_member *or_of;
    struct jsonl_member *items; /* stb_ds array: all members of all objects; the caller frees it */
    const struct jsonl_others *others; /* of the first member, for the whole row, or NULL */
};

/* Finds the members [count] of the object in row[0 .. size) and decodes the escapes of strings in
 * place, which overwrites the row. Names must differ. Fails if the row is not such an object, or if
 * a member is missing, duplicate or of another kind. Then the row is unchanged, and *column is the
 * position of the error, in characters from 1. */
int jsonl_row(char *row, size_t size, struct jsonl_member *members, int count, size_t *column,
              struct error *error);

/* Returns which of the names [count] are keys of the row's object: bit i for names[i]. The row is
 * not checked, so keys of a broken row are found as far as its quotes and brackets match. */
unsigned jsonl_names(const char *row, size_t size, const char *const *names, int count);

/* True if the row is only white space. */
bool jsonl_is_blank(const char *row, size_t size);
