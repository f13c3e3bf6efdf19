/* A small table, printed for a terminal, as Markdown or as HTML.
 *
 *   struct table table = {0};
 *   table_column(&table, "precision", TABLE_LEFT);
 *   table_column(&table, "loss", TABLE_RIGHT);
 *   table_cell(&table, "%s", name);
 *   table_cell(&table, "%.4f", loss);     the row is full: the next cell begins another
 *   table_print_text(stdout, &table, 80);
 *   table_free(&table);
 *
 * Cells are plain UTF-8 text; special characters of Markdown and HTML are escaped when printed. */
#pragma once

#include <stdio.h>

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

/* The three printers write complete rows; each line ends with a line break.
 *
 * table_print_text separates columns by two spaces and stays within `width` columns (at least 8).
 * If the table is wider, headings and cells of the first column are wrapped at spaces and after
 * colons and commas. If it is still too wide, it is printed in blocks that repeat the first column.
 * A cell that is too wide even next to the first column alone is wrapped too. Control characters
 * become spaces. */
void table_print_text(FILE *out, const struct table *table, int width);
void table_print_markdown(FILE *out, const struct table *table);
void table_print_html(FILE *out, const struct table *table); /* scrolls horizontally */

void table_free(struct table *table);
