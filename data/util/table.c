#include "data/util/table.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/program_names.h"
#include "data/util/utf8.h"

enum { GAP = 2 }; /* between two columns */

/* Makes text one line that a terminal can show. Returns text. */
static char *make_plain(char *text) {
    for (char *at = utf8_mask(text); *at; at++)
        if (*at == '\n' || *at == '\t') *at = ' ';
    return text;
}

/* Returns formatted text, made plain; the caller frees it. */
__attribute__((format(printf, 1, 0))) static char *plain_text(const char *format,
                                                              va_list arguments) {
    char *text, named[PROGRAM_TEXT_MAX];
    if (vasprintf(&text, program_format(named, format), arguments) < 0) end_out_of_memory();
    return make_plain(text);
}

/* ---- paragraphs */

void text_print(FILE *out, int indent, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = plain_text(format, arguments);
    va_end(arguments);
    text_wrap(out, 0, indent, indent, text);
    fputc('\n', out);
    free(text);
}

void text_heading(FILE *out, const char *heading) {
    fputc('\n', out);
    text_print(out, 0, "%s", heading);
}

/* ---- tables of cells */

static int column_count(const struct table *table) {
    return (int)arrlen(table->columns);
}

void table_column(struct table *table, const char *heading, enum table_align align) {
    assert(arrlen(table->cells) == 0);
    struct table_head head = {strdup(heading), align};
    if (!head.text) end_out_of_memory();
    make_plain(head.text);
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
    va_list arguments;
    va_start(arguments, format);
    arrput(table->cells, plain_text(format, arguments));
    va_end(arguments);
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
            fprintf(out, "%.*s", (int)(end - rest[i]), rest[i]);
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
static int set_widths(int *widths, const struct table *table, bool narrow) {
    int left = TEXT_WIDTH + GAP;
    for (int i = 0; i < column_count(table); i++)
        left -= GAP + (widths[i] = column_width(table, i, narrow));
    return left;
}

/* Sets the widths; a column that is too wide even next to the first one alone is narrowed. */
static void choose_widths(int *widths, const struct table *table) {
    int count = column_count(table), most = count > 1 ? (TEXT_WIDTH - GAP) / 2 : TEXT_WIDTH;
    if (set_widths(widths, table, false) < 0) {
        int name = widths[0], left = set_widths(widths, table, true);
        widths[0] = left < 0 || widths[0] + left > name ? name : widths[0] + left;
    }
    if (widths[0] > most) widths[0] = most;
    for (int i = 1; i < count; i++)
        if (widths[0] + GAP + widths[i] > TEXT_WIDTH) widths[i] = TEXT_WIDTH - GAP - widths[0];
}

void table_print(FILE *out, struct table *table) {
    int count = column_count(table), widths[count];
    assert(count > 0);
    choose_widths(widths, table);
    struct block block = {table, widths, 1, 1};
    do {
        int used = widths[0];
        block.from = block.to;
        while (block.to < count && used + GAP + widths[block.to] <= TEXT_WIDTH)
            used += GAP + widths[block.to++];
        if (block.from > 1) putc('\n', out);
        print_row(out, &block, -1);
        print_rule(out, &block);
        for (int row = 0; row < table_rows(table); row++) print_row(out, &block, row);
    } while (block.to < count);
    table_free(table);
}

/* ---- members of JSON objects */

const cJSON *json_at(const cJSON *object, const char *path) {
    char key[64];
    for (size_t length; object && *path; path += length + (path[length] == '.')) {
        length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = json_member(object, key);
    }
    return object;
}

double json_number_at(const cJSON *object, const char *path) {
    const cJSON *item = json_at(object, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

const char *json_text_at(const cJSON *object, const char *path) {
    const cJSON *item = json_at(object, path);
    return cJSON_IsString(item) ? item->valuestring : "";
}

void json_add_numbers(cJSON *object, const struct json_number *numbers) {
    for (; numbers->key; numbers++) cJSON_AddNumberToObject(object, numbers->key, numbers->value);
}

cJSON *json_add_item(cJSON *array) {
    cJSON *item = cJSON_CreateObject();
    cJSON_AddItemToArray(array, item);
    return item;
}

void json_add_text(cJSON *array, const char *format, ...) {
    char *text, named[PROGRAM_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, program_format(named, format), arguments) < 0) end_out_of_memory();
    va_end(arguments);
    cJSON_AddItemToArray(array, cJSON_CreateString(text));
    free(text);
}

/* ---- figures */

struct decimal decimal(double value, int decimals, bool sign) {
    struct decimal decimal;
    snprintf(decimal.text, sizeof decimal.text, sign ? "%+.*f" : "%.*f", decimals, value);
    if (decimal.text[0] == '-' && strtod(decimal.text, NULL) == 0)
        snprintf(decimal.text, sizeof decimal.text, "%.*f", decimals, 0.0);
    return decimal;
}

struct percent percent(double share) {
    struct percent percent;
    double value = 100 * share, size = fabs(value);
    int digits = value == 0 || size >= 1e9 ? 0 : size < 0.1 ? 3 : size < 10 ? 2 : 1;
    bool inf = !isfinite(share), tiny = value != 0 && size < 0.001;
    if (inf || tiny) snprintf(percent.text, sizeof percent.text, inf ? "inf" : "<.001%%");
    else snprintf(percent.text, sizeof percent.text, "%.*f%%", digits, value);
    return percent;
}

/* The tolerance is for metrics.jsonl, whose nine digits round large powers of two. */
const char *scale_text(char text[SCALE_TEXT_MAX], double scale) {
    double exponent = round(log2(scale));
    bool power = fabs(scale / exp2(exponent) - 1) < 1e-7;
    snprintf(text, SCALE_TEXT_MAX, power ? "2^%.0f" : "%g", power ? exponent : scale);
    return text;
}

/* ---- tables of JSON objects */

static bool is_needed(const cJSON *needed) {
    if (cJSON_IsString(needed)) return strcmp(needed->valuestring, "fp32") != 0;
    return cJSON_IsTrue(needed) || (cJSON_IsNumber(needed) && needed->valuedouble > 0);
}

/* Returns the member of a row that a column shows, or NULL. */
static const cJSON *cell_of(const cJSON *row, const struct column *column) {
    const cJSON *cell = json_at(row, column->path);
    if (column->needs && !is_needed(json_at(row, column->needs))) return NULL;
    if (column->show == SHOW_TEXT) return cJSON_IsString(cell) ? cell : NULL;
    bool missing = column->show != SHOW_SHARE && isnan(json_number_at(row, column->path));
    return cJSON_IsNumber(cell) && !missing ? cell : NULL;
}

/* Returns the worst cell of the rows of the same kind as `first`, or its own if kind is NULL. */
static const cJSON *worst_cell(const cJSON *first, const struct column *column, const char *kind) {
    const cJSON *worst = cell_of(first, column);
    for (const cJSON *row = kind && worst ? first->next : NULL; row; row = row->next) {
        const cJSON *other = cell_of(row, column);
        if (!other || strcmp(json_text_at(row, kind), json_text_at(first, kind)) != 0) continue;
        bool larger = other->valuedouble > worst->valuedouble;
        if (larger != (column->show == SHOW_DECIBELS)) worst = other;
    }
    return worst;
}

static void add_cell(struct table *table, const struct column *column, const cJSON *cell) {
    char scale[SCALE_TEXT_MAX];
    const char *unit = column->unit ? column->unit : "";
    double value = cell ? cell->valuedouble : 0;
    if (!cell) table_cell(table, "-");
    else switch (column->show) {
        case SHOW_TEXT: table_cell(table, "%s", cell->valuestring); break;
        case SHOW_NUMBER:
        case SHOW_CHANGE: {
            bool sign = column->show == SHOW_CHANGE;
            table_cell(table, "%s%s", decimal(value, column->decimals, sign).text, unit);
            break;
        }
        case SHOW_SMALL: table_cell(table, value == 0 ? "0" : "%.1e", value); break;
        case SHOW_DECIBELS: table_cell(table, "%.1f", value); break;
        case SHOW_SHARE: table_cell(table, "%s", percent(value).text); break;
        case SHOW_SCALE: table_cell(table, "%s", scale_text(scale, value)); break;
        case SHOW_BYTES:
            if (value < 0x1p30) table_cell(table, "%.1f MiB", value / 0x1p20);
            else table_cell(table, "%.2f GiB", value / 0x1p30);
        }
}

static bool column_is_empty(const struct column *column, const cJSON *rows) {
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        if (cell_of(row, column)) return false;
    }
    return true;
}

static bool row_is_empty(const struct column *columns, const cJSON *row) {
    for (int i = 1; columns[i].heading; i++)
        if (cell_of(row, &columns[i])) return false;
    return true;
}

/* True if an earlier row is of the same kind. */
static bool is_known(const cJSON *rows, const cJSON *row, const char *kind) {
    for (const cJSON *earlier = rows->child; earlier != row; earlier = earlier->next)
        if (strcmp(json_text_at(earlier, kind), json_text_at(row, kind)) == 0) return true;
    return false;
}

/* Makes a table of the rows; with a kind, of the worst figures of the rows of each kind. */
static struct table make_table(const struct column *columns, const cJSON *rows, const char *kind) {
    struct table table = {0};
    struct column shown[COLUMNS_MAX];
    int count = 0;
    const cJSON *row;
    for (int i = 0; columns[i].heading; i++) {
        if (i && column_is_empty(&columns[i], rows)) continue;
        table_column(&table, columns[i].heading,
                     columns[i].show == SHOW_TEXT ? TABLE_LEFT : TABLE_RIGHT);
        shown[count++] = columns[i];
    }
    if (kind) shown[0].path = kind;
    cJSON_ArrayForEach(row, rows) {
        if (row_is_empty(columns, row) || (kind && is_known(rows, row, kind))) continue;
        for (int i = 0; i < count; i++)
            add_cell(&table, &shown[i], worst_cell(row, &shown[i], i ? kind : NULL));
    }
    return table;
}

void section_print(FILE *out, const struct section *section, const cJSON *rows) {
    struct table table = make_table(section->columns, rows, section->kind);
    if (table_rows(&table) == 0) {
        table_free(&table);
        return;
    }
    text_heading(out, section->title);
    if (section->note) text_print(out, 2, "%s", section->note);
    fputc('\n', out);
    table_print(out, &table);
}

/* ---- reports */

int report_folder(const char *folder, struct error *error) {
    if (directory_create(folder, error)) return -1;
    if (access(folder, W_OK | X_OK) == 0) return 0;
    return fail(error, "cannot write to the directory %.500s: %s\nname another one with --out",
                folder, strerror(errno));
}

/* Prints JSON with escapes for the control characters that cJSON leaves, and U+FFFD for bytes that
 * are no UTF-8. All of them are in strings. */
static void print_json(FILE *out, const cJSON *report) {
    char *text = cJSON_Print(report);
    if (!text) end_out_of_memory();
    for (size_t left = strlen(text), i = 0, count; left > 0; i += count, left -= count) {
        count = utf8_character(text + i, left);
        uint32_t code = count ? utf8_code(text + i, count) : 0xfffd;
        if (count == 0 || utf8_is_control(text + i, count)) fprintf(out, "\\u%04x", code);
        else fwrite(text + i, 1, count, out);
        if (count == 0) count = 1;
    }
    fputc('\n', out);
    free(text);
}

int report_write(const cJSON *report, const char *folder, const char *name, struct error *error) {
    char path[FILE_PATH_MAX], file[100];
    struct printed printed;
    snprintf(file, sizeof file, "%s.json", name);
    if (file_path_join(path, folder, file, error)) return -1;
    if (printed_open(&printed)) return fail(error, "%s: %s", path, strerror(errno));
    print_json(printed.out, report);
    return printed_write(&printed, path, NULL, error);
}

int report_publish(report_printer *print, const cJSON *report, const char *folder, const char *name,
                   struct error *error) {
    print(stdout, report);
    return folder ? report_write(report, folder, name, error) : 0;
}
