#include "model/page/section.h"

#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"

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

/* ---- cells */

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
        case SHOW_NUMBER: table_cell(table, "%.*f%s", column->decimals, value, unit); break;
        case SHOW_SMALL: table_cell(table, value == 0 ? "0" : "%.1e", value); break;
        case SHOW_CHANGE: table_cell(table, "%+.*f%s", column->decimals, value, unit); break;
        case SHOW_DECIBELS: table_cell(table, "%.1f", value); break;
        case SHOW_SHARE: table_cell(table, "%s", percent(value).text); break;
        case SHOW_SCALE: table_cell(table, "%s", scale_text(scale, value)); break;
        case SHOW_BYTES:
            if (value < 0x1p30) table_cell(table, "%.1f MiB", value / 0x1p20);
            else table_cell(table, "%.2f GiB", value / 0x1p30);
        }
}

/* ---- tables */

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

void section_print(const struct page *page, const struct section *section, const cJSON *rows) {
    const char *kind = page->form == PAGE_TEXT ? section->kind : NULL;
    struct table table = make_table(section->columns, rows, kind);
    if (table_rows(&table) == 0) {
        table_free(&table);
        return;
    }
    page_heading(page, section->title);
    if (section->note) page_paragraph(page, section->note);
    page_table(page, &table);
}
