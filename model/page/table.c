#include "model/page/table.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "model/page/escape.h"

enum { GAP = 2 }; /* between two columns */

static int column_count(const struct table *table) {
    return (int)arrlen(table->columns);
}

void table_column(struct table *table, const char *heading, enum table_align align) {
    assert(arrlen(table->cells) == 0);
    struct table_head head = {strdup(heading), align};
    if (!head.text) end_out_of_memory();
    arrput(table->columns, head);
}

void table_columns(struct table *table, enum table_align align, ...) {
    va_list headings;
    va_start(headings, align);
    for (const char *heading; (heading = va_arg(headings, const char *));)
        table_column(table, heading, align);
    va_end(headings);
}

void table_cell(struct table *table, const char *format, ...) {
    assert(column_count(table) > 0);
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) end_out_of_memory();
    arrput(table->cells, text);
}

int table_rows(const struct table *table) {
    return column_count(table) ? (int)arrlen(table->cells) / column_count(table) : 0;
}

void table_free(struct table *table) {
    for (int i = 0; i < column_count(table); i++) free(table->columns[i].text);
    for (int i = 0; i < (int)arrlen(table->cells); i++) free(table->cells[i]);
    arrfree(table->columns);
    arrfree(table->cells);
}

/* Returns the text of a cell; row -1 is the heading. */
static const char *text_at(const struct table *table, int row, int column) {
    if (row < 0) return table->columns[column].text;
    return table->cells[row * column_count(table) + column];
}

/* ---- for the terminal */

static bool begins_character(char c) {
    return (c & 0xc0) != 0x80;
}

static int count_characters(const char *text, const char *end) {
    int count = 0;
    for (; text < end; text++) count += begins_character(*text);
    return count;
}

/* True if a line that begins at `text` may be broken before `at`. */
static bool may_break(const char *text, const char *at) {
    return at > text && (*at == ' ' || at[-1] == ':' || at[-1] == ',');
}

/* Returns the end of the part of text that fits a line of that width. The line ends at the last
 * possible break, or in the middle of a word if there is none. */
static const char *line_end(const char *text, int width) {
    const char *end = text, *last_break = NULL;
    for (int count = 0; *end; end++) {
        if (may_break(text, end)) last_break = end;
        if (begins_character(*end) && count++ == width) break;
    }
    return *end && last_break ? last_break : end;
}

/* Returns the width of a column. narrow: its heading, and its cells if it is the first column, are
 * wrapped at every possible break. */
static int column_width(const struct table *table, int column, bool narrow) {
    int width = 1;
    for (int row = -1; row < table_rows(table); row++) {
        const char *begin = text_at(table, row, column), *end = begin;
        bool wrapped = narrow && (row < 0 || column == 0);
        for (; *begin; begin = end + (*end == ' ')) {
            for (end = begin + 1; *end && !(wrapped && may_break(begin, end));) end++;
            int wide = count_characters(begin, end);
            if (wide > width) width = wide;
        }
    }
    return width;
}

/* Columns printed side by side: the first one, and from .. to - 1. */
struct block {
    const struct table *table;
    const int *widths;
    int from, to;
};

static void print_row(FILE *out, const struct block *block, int row) {
    const char *rest[block->to + 1];
    bool more = true;
    for (int i = 0; i < block->to; i++) rest[i] = text_at(block->table, row, i);
    while (more) {
        int spaces = 0; /* pending, printed only before text: lines have no trailing spaces */
        more = false;
        for (int i = 0; i < block->to; i = i ? i + 1 : block->from) {
            const char *next = line_end(rest[i], block->widths[i]), *end = next;
            while (end > rest[i] && end[-1] == ' ') end--;
            int width = count_characters(rest[i], end), pad = block->widths[i] - width;
            bool right = block->table->columns[i].align == TABLE_RIGHT;
            if (right) spaces += pad;
            if (end > rest[i]) {
                fprintf(out, "%*s", spaces, "");
                spaces = 0;
            } else spaces += width;
            escape_text(out, rest[i], end);
            spaces += GAP + (right ? 0 : pad);
            rest[i] = next + strspn(next, " ");
            if (*rest[i]) more = true;
        }
        putc('\n', out);
    }
}

static void print_rule(FILE *out, const struct block *block) {
    for (int i = 0; i < block->to; i = i ? i + 1 : block->from) {
        fprintf(out, "%*s", i ? GAP : 0, "");
        for (int dash = 0; dash < block->widths[i]; dash++) putc('-', out);
    }
    putc('\n', out);
}

/* Sets the width of each column. Returns the remaining terminal columns, negative if too few. */
static int set_widths(int *widths, const struct table *table, int width, bool narrow) {
    int left = width + GAP;
    for (int i = 0; i < column_count(table); i++)
        left -= GAP + (widths[i] = column_width(table, i, narrow));
    return left;
}

/* Sets the widths; a column that is too wide even next to the first one alone is narrowed. */
static void choose_widths(int *widths, const struct table *table, int width) {
    int count = column_count(table), most = count > 1 ? (width - GAP) / 2 : width;
    assert(count > 0);
    if (set_widths(widths, table, width, false) < 0) {
        int name = widths[0], left = set_widths(widths, table, width, true);
        widths[0] = left < 0 || widths[0] + left > name ? name : widths[0] + left;
    }
    if (widths[0] > most) widths[0] = most;
    for (int i = 1; i < count; i++)
        if (widths[0] + GAP + widths[i] > width) widths[i] = width - GAP - widths[0];
}

void table_print_text(FILE *out, const struct table *table, int width) {
    int count = column_count(table), widths[count + 1];
    assert(width >= 8);
    if (!count) return;
    choose_widths(widths, table, width);
    struct block block = {table, widths, 1, 1};
    do {
        int used = widths[0];
        block.from = block.to;
        while (block.to < count && used + GAP + widths[block.to] <= width)
            used += GAP + widths[block.to++];
        if (block.from > 1) putc('\n', out);
        print_row(out, &block, -1);
        print_rule(out, &block);
        for (int row = 0; row < table_rows(table); row++) print_row(out, &block, row);
    } while (block.to < count);
}

/* ---- Markdown */

void table_print_markdown(FILE *out, const struct table *table) {
    int count = column_count(table);
    for (int row = -1; count && row < table_rows(table); row++) {
        for (int i = 0; i < count; i++) {
            fputs(i ? " | " : "| ", out);
            escape_markdown(out, text_at(table, row, i));
        }
        fputs(" |\n", out);
        for (int i = 0; i < count && row < 0; i++)
            fputs(table->columns[i].align == TABLE_RIGHT ? "| ---: " : "| --- ", out);
        if (row < 0) fputs("|\n", out);
    }
}

/* ---- HTML */

static void print_html_row(FILE *out, const struct table *table, int row) {
    fprintf(out, "<tr>");
    for (int i = 0; i < column_count(table); i++) {
        bool right = table->columns[i].align == TABLE_RIGHT, heads = row < 0 || i == 0;
        fprintf(out, "<%s%s%s>", heads ? "th" : "td",
                !heads    ? ""
                : row < 0 ? " scope=\"col\""
                          : " scope=\"row\"",
                right ? " class=\"right\"" : "");
        escape_html(out, text_at(table, row, i), true);
        fprintf(out, "</%s>", heads ? "th" : "td");
    }
    fprintf(out, "</tr>\n");
}

void table_print_html(FILE *out, const struct table *table) {
    if (!column_count(table)) return;
    /* With a tabindex the table also scrolls with the arrow keys. */
    fprintf(out, "<div class=\"table\" tabindex=\"0\"><table>\n<thead>\n");
    print_html_row(out, table, -1);
    fprintf(out, "</thead>\n<tbody>\n");
    for (int row = 0; row < table_rows(table); row++) print_html_row(out, table, row);
    fprintf(out, "</tbody>\n</table></div>\n");
}
