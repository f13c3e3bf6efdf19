/* Sections of a report: a heading, a note and a table whose rows are JSON objects. A description of
 * the columns, by path, replaces code for each table. */
#pragma once

#include <stdbool.h>

#include "model/page/page.h"

struct cJSON;

enum show {
    SHOW_TEXT,
    SHOW_NUMBER,   /* `decimals` and `unit` */
    SHOW_SMALL,    /* a number that may be far below 1, as 2.4e-06 */
    SHOW_CHANGE,   /* the same with a sign */
    SHOW_DECIBELS, /* one decimal; the smallest value is the worst */
    SHOW_SHARE,    /* a part of 1, in percent */
    SHOW_BYTES,    /* in MiB or GiB */
    SHOW_SCALE     /* a power of two as "2^16" */
};

/* A column shows the member `path` of each row, such as "error.bf16". It shows "-" if that or the
 * member `needs` (optional) is missing, null, false, 0, or "fp32". */
struct column {
    const char *heading, *path;
    enum show show;
    int decimals;
    const char *unit, *needs;
};

enum { COLUMNS_MAX = 10 };

/* The first column is the name of a row, and an empty one ends the list. Further columns without
 * any figure are left out, and so are rows. */
struct section {
    const char *title, *note; /* the note is optional */
    const char *kind; /* text shows the worst figures of all rows with the same member `kind` */
    struct column columns[COLUMNS_MAX];
};

/* Prints a section; nothing if `rows`, an array, has no figures. */
void section_print(const struct page *page, const struct section *section,
                   const struct cJSON *rows);

/* Returns the member at a path such as "error.bf16": NULL, NaN or "" if there is none. */
const struct cJSON *json_at(const struct cJSON *object, const char *path);
double json_number_at(const struct cJSON *object, const char *path);
const char *json_text_at(const struct cJSON *object, const char *path);

/* Adds numbers to an object: JSON_NUMBERS(object, {"loss", loss}, {"step", step}). Those that are
 * not finite are printed as null. */
struct json_number {
    const char *key;
    double value;
};
void json_add_numbers(struct cJSON *object, const struct json_number *numbers);
#define JSON_NUMBERS(object, ...) \
    json_add_numbers(object, (const struct json_number[]){__VA_ARGS__, {NULL, 0}})

/* Adds an object to an array, and returns it. */
struct cJSON *json_add_item(struct cJSON *array);

/* Writes a loss scale: "2^16", or a plain number if it is not a power of two. Returns text. */
enum { SCALE_TEXT_MAX = 32 };
const char *scale_text(char text[SCALE_TEXT_MAX], double scale);

struct percent {
    char text[16];
};

/* Returns 0.0123 as "1.23%", with 1 to 3 decimals, by value, for use among the arguments of printf.
 * Less than 0.001% becomes "<.001%", a value that is not finite "inf". Up to 100% there are at most
 * 6 characters. */
struct percent percent(double share);
