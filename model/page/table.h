/* A small table that prints itself for a terminal, as Markdown and as HTML.
 *
 *   struct table table = {0};
 *   table_column(&table, "precision", TABLE_LEFT);
 *   table_column(&table, "loss", TABLE_RIGHT);
 *   table_cell(&table, "%s", name);
 *   table_cell(&table, "%.4f", loss);     the row is full: the next cell begins another
 *   table_print_text(stdout, &table, 80);
 *   table_free(&table);
 *
 * Cells are plain UTF-8 text; what has a meaning in Markdown or HTML is escaped when printed. */
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

/* All columns before the first cell. The text is copied. */
void table_column(struct table *table, const char *heading, enum table_align align);

/* Several, all aligned alike; a NULL ends them. */
void table_columns(struct table *table, enum table_align align, ...) __attribute__((sentinel));

/* The next cell of the row, printed like printf does. */
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

int table_rows(const struct table *table); /* whole rows */

/* The three printers write whole rows; each line ends with a line break. table_print_text aligns
 * columns two spaces apart and stays within `width` columns (at least 8): where the table is wider,
 * headings and the cells of the first column continue on the next line, broken at spaces and after
 * colons and commas; where it still is, it is printed in blocks that repeat the first column; a
 * cell too wide even beside the first one alone continues on the next line too. Control characters
 * become spaces. */
void table_print_text(FILE *out, const struct table *table, int width);
void table_print_markdown(FILE *out, const struct table *table);
void table_print_html(FILE *out, const struct table *table); /* can be scrolled sideways */

/* Prints text as Markdown, escaped like a cell; it stays within one line. */
void table_escape_markdown(FILE *out, const char *text);

void table_free(struct table *table);
