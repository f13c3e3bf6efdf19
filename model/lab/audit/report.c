#include "model/lab/audit/report.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "model/architecture/autocast_sites.h"
#include "model/page/page.h"
#include "model/page/percent.h"
#include "model/page/table.h"
#include "model/page/wrap.h"

/* Format of a figure. The worst of several layers is the largest, or the smallest for DECIBELS. */
enum show { TEXT, PERCENT, DIFFERENCE, LOSS, LAYER, DECIBELS };

/* A column shows the member `path` of each row. It shows "-" if the member `needs` (optional) is
 * missing, "fp32" or 0. A column without any figure is left out. */
struct column {
    const char *heading, *path;
    enum show show;
    const char *needs;
};

enum { COLUMNS_MAX = 8 };

/* A section with a table. It is left out if the report has no such rows. */
struct section {
    const char *title, *note;
    const char *fp16_note; /* second note if fp16 was audited, or NULL */
    const char *rows;      /* member of the report that holds the rows */
    bool gradient;         /* shows the rows whose member "gradient" has this value */
    const char *heading;   /* heading of the first column */
    const char *kind;      /* member that is equal in rows of several layers, or NULL */
    struct column columns[COLUMNS_MAX];
};

#define IN_FP16 "stored.fp16"
#define UPDATED "update.changed"

static const struct section sections[] = {
    {.title = "Forward pass",
     .note = "Errors: root mean square of the difference from fp32, relative to fp32.",
     .fp16_note = "In fp16, of the values that are not zero: the shares that become zero (at most "
                  "2^-25) and subnormal (below 2^-14, loses bits); room: doublings left before "
                  "overflow. \"-\": kept in fp32.",
     .rows = "tensors",
     .heading = "forward",
     .kind = "tensor",
     .columns = {{"bf16", "error.bf16", PERCENT, NULL},
                 {"fp16", "error.fp16", PERCENT, NULL},
                 {"zero", "unscaled.zero", PERCENT, IN_FP16},
                 {"subnormal", "unscaled.subnormal", PERCENT, IN_FP16},
                 {"room", "unscaled.room", DECIBELS, IN_FP16}}},
    {.title = "Backward pass",
     .note = "The same for gradients of activations.",
     .fp16_note = "\"scaled\" and room: at the loss scale.",
     .rows = "tensors",
     .gradient = true,
     .heading = "backward",
     .kind = "tensor",
     .columns = {{"bf16", "error.bf16", PERCENT, NULL},
                 {"fp16", "error.fp16", PERCENT, NULL},
                 {"zero", "unscaled.zero", PERCENT, IN_FP16},
                 {"scaled", "scaled.zero", PERCENT, IN_FP16},
                 {"subnormal", "unscaled.subnormal", PERCENT, IN_FP16},
                 {"scaled", "scaled.subnormal", PERCENT, IN_FP16},
                 {"room", "scaled.room", DECIBELS, IN_FP16}}},
    {.title = "Parameters",
     .note = "Errors of gradients; and, if the master weights were 16 bit: updates lost in one "
             "step, and the signal to noise of the update in decibels.",
     .rows = "parameters",
     .heading = "gradient of",
     .kind = "kind",
     .columns = {{"bf16", "error.bf16", PERCENT, NULL},
                 {"fp16", "error.fp16", PERCENT, NULL},
                 {"scaled zero", "scaled.zero", PERCENT, IN_FP16},
                 {"lost bf16", "update.lost.bf16", PERCENT, UPDATED},
                 {"fp16", "update.lost.fp16", PERCENT, UPDATED},
                 {"dB bf16", "update.decibel.bf16", DECIBELS, UPDATED},
                 {"fp16", "update.decibel.fp16", DECIBELS, UPDATED}}},
    {.title = "One more operation in float32",
     .note = "Error of all gradients in at most two micro-batches with one more word in "
             "autocast.float32, and the part of it that this removes. \"-\": in float32 already.",
     .rows = "formats",
     .heading = "one more",
     .columns = {{"bf16", "bf16.gradient_error", PERCENT, NULL},
                 {"removes", "bf16.removes", PERCENT, NULL},
                 {"fp16", "fp16.gradient_error", PERCENT, NULL},
                 {"removes", "fp16.removes", PERCENT, NULL}}},
    {.title = "Operands of linear layers in fp8",
     .note = "As the config rounds them. Of the values that are not zero: the share that became "
             "zero and the share beyond the largest value. Signal to noise in decibels, of all "
             "layers and of the worst.",
     .rows = "operands",
     .heading = "operand",
     .columns = {{"format", "format", TEXT, NULL},
                 {"to zero", "to_zero", PERCENT, NULL},
                 {"saturated", "saturated", PERCENT, NULL},
                 {"SNR", "snr", DECIBELS, NULL},
                 {"worst", "worst_snr", DECIBELS, NULL},
                 {"layer", "worst_layer", LAYER, NULL}}},
    {.title = "Loss and gradients in fp8",
     .note = "The loss and the error of all gradients, relative to fp32.",
     .rows = "trials",
     .heading = "computed in",
     .columns = {{"loss", "loss", LOSS, NULL},
                 {"against fp32", "loss_error", DIFFERENCE, NULL},
                 {"error of gradients", "gradient_error", PERCENT, NULL}}},
};

/* ---- members of the report */

/* Returns the member at a path such as "error.bf16", NULL if there is none. */
static const cJSON *member(const cJSON *object, const char *path) {
    char key[32];
    for (size_t length; object && *path; path += length + (path[length] == '.')) {
        length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        object = cJSON_GetObjectItemCaseSensitive(object, key);
    }
    return object;
}

static const char *text(const cJSON *object, const char *path) {
    const cJSON *item = member(object, path);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static double number(const cJSON *object, const char *path) {
    const cJSON *item = member(object, path);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static cJSON *add_row(cJSON *rows, const char *name) {
    cJSON *row = cJSON_CreateObject();
    cJSON_AddItemToArray(rows, row);
    cJSON_AddStringToObject(row, "name", name);
    return row;
}

/* Adds a row for the errors without a trial, then a row per operation with the trials of all
 * formats. */
static void add_trials(cJSON *rows, const cJSON *formats) {
    for (int i = -1; i < AUTOCAST_WORD_COUNT; i++) {
        const char *name = i < 0 ? "(none)" : autocast_words[i];
        cJSON *row = add_row(rows, name), *format;
        cJSON_ArrayForEach(format, formats) {
            cJSON *trial = cJSON_GetObjectItem(cJSON_GetObjectItem(format, "trials"), name);
            double first = number(format, "first_error");
            if (trial) cJSON_AddItemReferenceToObject(row, format->string, trial);
            else if (i < 0)
                cJSON_AddNumberToObject(cJSON_AddObjectToObject(row, format->string),
                                        "gradient_error", first);
        }
    }
}

/* Adds the figures of all parameters together. */
static void add_total(cJSON *rows, const cJSON *report) {
    const cJSON *format;
    cJSON *row = add_row(rows, "all"), *errors = cJSON_AddObjectToObject(row, "error");
    cJSON_AddStringToObject(row, "kind", "all");
    cJSON_ArrayForEach(format, member(report, "formats")) {
        cJSON_AddNumberToObject(errors, format->string, number(format, "gradient_error"));
    }
    cJSON_AddItemReferenceToObject(row, "update", cJSON_GetObjectItem(report, "update"));
}

/* Returns the rows of a section, to be deleted. */
static cJSON *collect_rows(const struct section *section, const cJSON *report) {
    cJSON *rows = cJSON_CreateArray(), *row, *all = cJSON_GetObjectItem(report, section->rows);
    if (cJSON_IsObject(all)) add_trials(rows, all);
    if (!cJSON_IsArray(all)) return rows;
    cJSON_ArrayForEach(row, all) {
        bool gradient = cJSON_IsTrue(member(row, "gradient"));
        if (gradient == section->gradient) cJSON_AddItemReferenceToArray(rows, row);
    }
    if (strcmp(section->rows, "parameters") == 0) add_total(rows, report);
    return rows;
}

/* ---- tables */

/* Returns the member of a row that a column shows, or NULL. */
static const cJSON *cell(const cJSON *row, const struct column *column) {
    const cJSON *needed = column->needs ? member(row, column->needs) : NULL;
    bool absent = cJSON_IsString(needed) ? strcmp(needed->valuestring, "fp32") == 0
                                         : !(needed && needed->valuedouble > 0);
    return column->needs && absent ? NULL : member(row, column->path);
}

/* Adds the worst figure of the rows of the same kind as `first`, or its own if kind is NULL. */
static void add_cell(struct table *table, const struct column *column, const cJSON *first,
                     const char *kind) {
    char share[PERCENT_MAX];
    const cJSON *worst = cell(first, column);
    for (const cJSON *row = kind && worst ? first->next : NULL; row; row = row->next) {
        const cJSON *other = cell(row, column);
        if (!other || strcmp(text(row, kind), text(first, kind)) != 0) continue;
        bool larger = other->valuedouble > worst->valuedouble;
        if (larger != (column->show == DECIBELS)) worst = other;
    }
    double figure = worst ? worst->valuedouble : 0;
    if (!worst) table_cell(table, "-");
    else if (column->show == TEXT) table_cell(table, "%s", worst->valuestring);
    else if (column->show == PERCENT) table_cell(table, "%s", percent_short(share, figure));
    else if (column->show == DIFFERENCE) table_cell(table, "%+.3f%%", 100 * figure);
    else
        table_cell(table, "%.*f", column->show == LOSS ? 5 : column->show == LAYER ? 0 : 1, figure);
}

static bool has_figures(const struct column *column, const cJSON *rows) {
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) {
        if (cell(row, column)) return true;
    }
    return false;
}

/* True if an earlier row is of the same kind. */
static bool is_known(const cJSON *rows, const cJSON *row, const char *kind) {
    for (const cJSON *earlier = rows->child; earlier != row; earlier = earlier->next)
        if (strcmp(text(earlier, kind), text(row, kind)) == 0) return true;
    return false;
}

/* Makes the table of a section: with `worst`, one row per kind with its worst figures; otherwise
 * all rows. */
static struct table make_table(const struct section *section, const cJSON *rows, bool worst) {
    struct table table = {0};
    const struct column *columns[COLUMNS_MAX];
    const char *kind = worst ? section->kind : NULL;
    const cJSON *row;
    int count = 0;
    table_column(&table, section->heading, TABLE_LEFT);
    for (const struct column *column = section->columns; column->heading; column++) {
        if (!has_figures(column, rows)) continue;
        table_column(&table, column->heading, column->show == TEXT ? TABLE_LEFT : TABLE_RIGHT);
        columns[count++] = column;
    }
    cJSON_ArrayForEach(row, rows) {
        if (kind && is_known(rows, row, kind)) continue;
        table_cell(&table, "%s", text(row, kind ? kind : "name"));
        for (int i = 0; i < count; i++) add_cell(&table, columns[i], row, kind);
    }
    return table;
}

static void describe(char *summary, size_t size, const cJSON *report) {
    double batches = number(report, "repetitions");
    snprintf(summary, size, "%.0f micro-batch%s of %.0f x %.0f tokens from step %.0f on", batches,
             batches == 1 ? "" : "es", number(report, "micro_batch_size"),
             number(report, "seq_len"), number(report, "step") + 1);
}

/* Makes the table of model, device, losses and loss scale at the top of the report. */
static struct table make_head(const cJSON *report) {
    struct table table = {0};
    char looks[120], losses[120] = "", scaled[80] = "";
    const cJSON *loss, *all = member(report, "loss");
    double scale = number(report, "loss_scale"), power = ceil(log2(scale));
    size_t used = 0;
    describe(looks, sizeof looks, report);
    if (cJSON_IsNumber(all)) snprintf(losses, sizeof losses, "fp32 %.6f", all->valuedouble);
    cJSON_ArrayForEach(loss, all) {
        used += (size_t)snprintf(losses + used, sizeof losses - used, "%s%s %.6f", used ? ", " : "",
                                 loss->string, loss->valuedouble);
    }
    const char *const facts[] = {"weights", text(report, "from"),   "looks at", looks,
                                 "device",  text(report, "device"), "loss",     losses};
    table_columns(&table, TABLE_LEFT, "audit of", text(report, "config"), NULL);
    for (int i = 0; i < 8; i++) table_cell(&table, "%s", facts[i]);
    if (!member(report, "formats.fp16")) return table;
    if (scale != exp2(power)) snprintf(scaled, sizeof scaled, "; the figures are at 2^%.0f", power);
    bool of_run = cJSON_IsTrue(member(report, "loss_scale_of_run"));
    table_cell(&table, "loss scale");
    table_cell(&table, "%.12g, %s%s", scale,
               of_run ? "that of the fp16 run at this step" : "loss_scale.init_scale", scaled);
    return table;
}

/* ---- output as JSON, text and HTML */

static void print_table(FILE *out, struct table table, bool html) {
    if (html) table_print_html(out, &table);
    else table_print_text(out, &table, WRAP_WIDTH);
    table_free(&table);
}

static void print_paragraph(FILE *out, const char *paragraph, bool html) {
    if (html) page_paragraph(out, "%s", paragraph);
    else print_wrapped(out, paragraph, 0, 2);
}

static void print_sections(FILE *out, const cJSON *report, bool html) {
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        cJSON *rows = collect_rows(&sections[i], report);
        if (rows->child) {
            if (html) page_heading(out, sections[i].title);
            else fprintf(out, "\n%s\n", sections[i].title);
            print_paragraph(out, sections[i].note, html);
            if (sections[i].fp16_note && member(report, "formats.fp16"))
                print_paragraph(out, sections[i].fp16_note, html);
            if (!html) fputc('\n', out);
            print_table(out, make_table(&sections[i], rows, !html), html);
        }
        cJSON_Delete(rows);
    }
}

/* Returns an object of the report as JSON; the caller frees it. */
static char *json_text(const cJSON *object) {
    char *json = cJSON_Print(object);
    if (!json) abort(); /* as stb_ds does when memory is short */
    return json;
}

static void print_advice(FILE *out, const cJSON *report, bool html) {
    const cJSON *advice = member(report, "advice"), *item;
    const cJSON *texts = cJSON_IsArray(advice) ? advice : member(advice, "texts");
    cJSON_ArrayForEach(item, texts) {
        print_paragraph(out, item->valuestring, html);
    }
    cJSON_ArrayForEach(item, member(advice, "configs")) {
        char *json = json_text(item);
        for (char *c = json; *c; c++) *c = *c == '\t' ? ' ' : *c;
        if (html) page_code(out, json);
        else fprintf(out, "\nfor %s:\n%s\n", item->string, json);
        free(json);
    }
}

void report_print_json(FILE *out, const cJSON *report) {
    char *json = json_text(report);
    fprintf(out, "%s\n", json);
    free(json);
}

void report_print_text(FILE *out, const cJSON *report) {
    print_table(out, make_head(report), false);
    if (member(report, "tensors"))
        fprintf(out,
                "\nEach row below is the worst of its layers; --out DIR writes all of them.\n");
    print_sections(out, report, false);
    fputc('\n', out);
    print_advice(out, report, false);
}

void report_print_html(FILE *out, const cJSON *report) {
    char title[600], summary[120];
    const char *format = text(report, "advice.format");
    describe(summary, sizeof summary, report);
    snprintf(title, sizeof title, "Precision audit of %s%s", text(report, "config"),
             member(report, "operands") ? ": fp8" : "");
    page_begin(out, title, summary);
    if (*format)
        page_verdict(out, strcmp(format, "fp32") == 0 ? PAGE_NEUTRAL : PAGE_GOOD, format,
                     "is the format for this model on this device");
    print_advice(out, report, true);
    page_heading(out, "Audited model");
    print_table(out, make_head(report), true);
    print_sections(out, report, true);
    page_end(out);
}
