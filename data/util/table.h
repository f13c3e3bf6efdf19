/* Reports of commands: one JSON object, and text for a terminal of 80 columns made from it.
 *
 *   struct table table = {0};
 *   table_column(&table, "precision", TABLE_LEFT);
 *   table_column(&table, "loss", TABLE_RIGHT);
 *   table_cell(&table, "%s", name);
 *   table_cell(&table, "%.4f", loss);     the row is full: the next cell begins another
 *   table_print(stdout, &table);
 *
 * Cells and paragraphs are UTF-8 text that may come from files: control characters and bytes that
 * are no UTF-8 become '?'. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/error.h"

struct cJSON;

/* Prints a paragraph. Lines after the first are indented. */
void text_print(FILE *out, int indent, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints an empty line and a heading. */
void text_heading(FILE *out, const char *heading);

/* ---- tables of cells */

enum table_align { TABLE_LEFT, TABLE_RIGHT };

struct table {
    struct table_head {
        char *text;
        enum table_align align;
    } * columns;  /* stb_ds array */
    char **cells; /* stb_ds array, row by row */
};

/* Adds a column, before the first cell is added. The heading is copied. */
void table_column(struct table *table, const char *heading, enum table_align align);

/* Adds several columns with the same alignment; NULL ends the list of headings. */
void table_columns(struct table *table, enum table_align align, ...) __attribute__((sentinel));

/* Adds the next cell, formatted like printf. A full row is followed by a new one. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

int table_rows(const struct table *table); /* number of complete rows */

/* Prints the complete rows and frees the table. Columns are separated by two spaces. If the table
 * is too wide, headings and cells of the first column are wrapped at spaces and after colons and
 * commas. If it is still too wide, it is printed in blocks that repeat the first column. A cell
 * that is too wide even next to the first column alone is wrapped too. */
void table_print(FILE *out, struct table *table);
void table_free(struct table *table);

/* ---- tables of JSON objects */

enum show {
    SHOW_TEXT,
    SHOW_NUMBER,   /* `decimals` and `unit` */
    SHOW_SMALL,    /* a number that may be far below 1, as 2.4e-06 */
    SHOW_CHANGE,   /* the same as SHOW_NUMBER with a sign */
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

/* A heading, a note and a table with a row for each object of an array. The first column is the
 * name of a row. Columns and rows without a value are omitted. An empty column ends the list, so
 * at most COLUMNS_MAX - 1 columns fit. */
struct section {
    const char *title, *note; /* the note is optional */
    const char *kind; /* optional: each row shows the worst figures of all with an equal `kind` */
    struct column columns[COLUMNS_MAX];
};

/* Prints a section; nothing if `rows`, an array, has no figures. */
void section_print(FILE *out, const struct section *section, const struct cJSON *rows);

/* ---- members of JSON objects */

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

/* Adds a sentence to an array, formatted like printf. */
void json_add_text(struct cJSON *array, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- figures */

/* Writes a loss scale: "2^16", or a plain number if it is not a power of two. Returns text. */
enum { SCALE_TEXT_MAX = 32 };
const char *scale_text(char text[SCALE_TEXT_MAX], double scale);

struct percent {
    char text[16];
};

struct decimal {
    char text[48];
};

/* Returns a number with `decimals` decimals, and with a sign if `sign`, by value, for use among the
 * arguments of printf. One that rounds to -0 has no sign. */
struct decimal decimal(double value, int decimals, bool sign);

/* Returns 0.0123 as "1.23%", with 1 to 3 decimals, by value, for use among the arguments of printf.
 * Less than 0.001% becomes "<.001%", a value that is not finite "inf". Up to 100% there are at most
 * 6 characters. */
struct percent percent(double share);

/* ---- reports */

/* Creates the directory of reports. Fails, before long work, if it is not writable. */
int report_folder(const char *folder, struct error *error);

/* Writes a report to the directory as NAME.json, which scripts/report.py turns into a page. */
int report_write(const struct cJSON *report, const char *folder, const char *name,
                 struct error *error);

/* Prints a report to standard output and, with a folder, writes it there. */
typedef void report_printer(FILE *out, const struct cJSON *report);
int report_publish(report_printer *print, const struct cJSON *report, const char *folder,
                   const char *name, struct error *error);
