#include "model/lab/audit/audit_tables.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "model/lab/page/percent.h"

/* ---- what it is of */

int audit_scale_now(const struct audit *audit) {
    return (int)ceil(log2((double)audit->subject.loss_scale));
}

void audit_describe(char *text, size_t size, const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    const struct config *config = &subject->config;
    snprintf(text, size,
             "%d micro-batch%s of %" PRId64 " x %" PRId64 " tokens from step %" PRId64 " on",
             subject->repetitions, subject->repetitions == 1 ? "" : "es",
             config->train.micro_batch_size, config->data.seq_len, subject->step + 1);
}

static void describe_scale(char *text, size_t size, const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    double scale = (double)subject->loss_scale;
    char rounded[80] = "";
    if (scale != ldexp(1, audit_scale_now(audit)))
        snprintf(rounded, sizeof rounded, "; the figures are at 2^%d", audit_scale_now(audit));
    snprintf(text, size, "%.12g, %s%s", scale,
             subject->scale_of_run ? "that of the fp16 run at this step" : "loss_scale.init_scale",
             rounded);
}

static void describe_losses(char *text, size_t size, const struct audit *audit) {
    size_t used = (size_t)snprintf(text, size, "fp32 %.6f", audit->reference.loss);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made)
            used += (size_t)snprintf(text + used, size - used, ", %s %.6f", audit_name(i),
                                     audit->formats[i].pass.loss);
}

int audit_head(struct audit_fact facts[AUDIT_FACTS], const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    struct audit_fact *fact = facts;
    fact->label = "audit of";
    snprintf(fact++->text, AUDIT_FACT_MAX, "%s", subject->config.name);
    fact->label = "weights";
    snprintf(fact++->text, AUDIT_FACT_MAX, "%s", subject->from);
    fact->label = "looks at";
    audit_describe(fact++->text, AUDIT_FACT_MAX, audit);
    fact->label = "device";
    snprintf(fact++->text, AUDIT_FACT_MAX, "%s", subject->be.device.description);
    if (audit->formats[AUDIT_FP16].made) {
        fact->label = "loss scale";
        describe_scale(fact++->text, AUDIT_FACT_MAX, audit);
    }
    fact->label = "loss";
    describe_losses(fact++->text, AUDIT_FACT_MAX, audit);
    assert(fact - facts <= AUDIT_FACTS);
    return (int)(fact - facts);
}

/* ---- tables */

static void add_percent(struct table *table, double share) {
    char text[PERCENT_MAX];
    table_cell(table, "%s", percent_short(text, share));
}

/* A tensor, or the worst of several. */
struct row {
    double errors[AUDIT_FORMATS];
    bool stored;                            /* in fp16, where that is looked at */
    double lost[2], subnormal[2], headroom; /* at scale 1 and at the other; headroom at that */
};

static void find_row(struct row *row, const struct audit *audit, int place, int layer, int scale) {
    const struct record *truth = &audit->reference.places[place][layer];
    const int scales[2] = {0, scale};
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_pass *pass = &audit->formats[i].pass;
        if (audit->formats[i].made)
            row->errors[i] = fmax(row->errors[i], record_error(&pass->places[place][layer]));
    }
    for (int i = 0; i < 2; i++) {
        row->lost[i] = fmax(row->lost[i], magnitudes_lost(&truth->magnitudes, scales[i]));
        row->subnormal[i] =
            fmax(row->subnormal[i], magnitudes_subnormal(&truth->magnitudes, scales[i]));
    }
    row->headroom = fmin(row->headroom, magnitudes_headroom(&truth->magnitudes, scale));
    const struct audit_format *fp16 = &audit->formats[AUDIT_FP16];
    row->stored = fp16->made && place_dtype(place, &fp16->pass.precision) == DTYPE_F16;
}

static void add_row(struct table *table, const struct audit *audit, const char *label,
                    const struct row *row, int scales) {
    table_cell(table, "%s", label);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made) add_percent(table, row->errors[i]);
    if (!audit->formats[AUDIT_FP16].made) return;
    if (!row->stored) {
        for (int i = 0; i < 2 * scales + 1; i++) table_cell(table, "-");
        return;
    }
    for (int i = 0; i < scales; i++) add_percent(table, row->lost[i]);
    for (int i = 0; i < scales; i++) add_percent(table, row->subnormal[i]);
    table_cell(table, "%.1f", row->headroom);
}

static void add_place(struct table *table, const struct audit *audit, int place,
                      enum audit_rows rows, int scale) {
    int scales = place_is_gradient(place) ? 2 : 1;
    struct row row = {.headroom = INFINITY};
    char label[80], name[PLACE_NAME_MAX];
    for (int layer = 0; layer < audit->reference.layers[place]; layer++) {
        find_row(&row, audit, place, layer, scale);
        if (rows == AUDIT_WORST) continue;
        place_label(label, sizeof label, place, layer);
        add_row(table, audit, label, &row, scales);
        row = (struct row){.headroom = INFINITY};
    }
    if (rows == AUDIT_WORST && audit->reference.layers[place] > 0)
        add_row(table, audit, place_name(name, place), &row, scales);
}

static void add_error_columns(struct table *table, const struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made) table_column(table, audit_name(i), TABLE_RIGHT);
}

struct table audit_table_forward(const struct audit *audit, enum audit_rows rows) {
    struct table table = {0};
    table_column(&table, "forward", TABLE_LEFT);
    add_error_columns(&table, audit);
    if (audit->formats[AUDIT_FP16].made) {
        table_columns(&table, TABLE_RIGHT, "zero", "subnormal", "room", NULL);
    }
    for (int place = 0; place < PLACES; place++)
        if (!place_is_gradient(place)) add_place(&table, audit, place, rows, 0);
    return table;
}

struct table audit_table_backward(const struct audit *audit, enum audit_rows rows, int scale) {
    struct table table = {0};
    char at[4][20];
    table_column(&table, "backward", TABLE_LEFT);
    add_error_columns(&table, audit);
    if (audit->formats[AUDIT_FP16].made) {
        snprintf(at[0], sizeof *at, "zero x1");
        snprintf(at[1], sizeof *at, "x2^%d", scale);
        snprintf(at[2], sizeof *at, "subn x1");
        snprintf(at[3], sizeof *at, "x2^%d", scale);
        for (int i = 0; i < 4; i++) table_column(&table, at[i], TABLE_RIGHT);
        table_column(&table, "room", TABLE_RIGHT);
    }
    for (int place = 0; place < PLACES; place++)
        if (place_is_gradient(place)) add_place(&table, audit, place, rows, scale);
    return table;
}

/* Errors and updates of one parameter, or of all layers' parameters of a kind. */
struct parameter_row {
    double errors[AUDIT_FORMATS];
    double lost; /* of the gradient, in fp16 at audit_scale_now */
    struct update update;
};

/* Gradients of parameters are fp32 unless gradients.dtype is "lower". */
static bool stores_gradients(const struct audit *audit) {
    const struct audit_format *fp16 = &audit->formats[AUDIT_FP16];
    return fp16->made && fp16->pass.precision.gradients == DTYPE_F16;
}

static void add_parameter_row(struct table *table, const struct audit *audit, const char *label,
                              const struct parameter_row *row) {
    table_cell(table, "%s", label);
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made) add_percent(table, row->errors[i]);
    if (stores_gradients(audit)) add_percent(table, row->lost);
    for (int i = 0; i < MASTER_FORMATS; i++) {
        if (row->update.changed == 0) table_cell(table, "-");
        else add_percent(table, update_lost(&row->update, i));
    }
    for (int i = 0; i < MASTER_FORMATS; i++) {
        if (row->update.changed == 0) table_cell(table, "-");
        else table_cell(table, "%.1f", update_decibel(&row->update, i));
    }
}

static void find_parameter(struct parameter_row *row, const struct audit *audit, int parameter) {
    for (int i = 0; i < AUDIT_FORMATS; i++)
        if (audit->formats[i].made)
            row->errors[i] =
                fmax(row->errors[i], record_error(&audit->formats[i].pass.parameters[parameter]));
    const struct magnitudes *truth = &audit->reference.parameters[parameter].magnitudes;
    row->lost = fmax(row->lost, magnitudes_lost(truth, audit_scale_now(audit)));
    if (audit->update.parameters) update_merge(&row->update, &audit->update.parameters[parameter]);
}

/* Whether an earlier one is of the same kind. */
static bool is_known(const struct audit_pass *pass, int parameter) {
    for (int i = 0; i < parameter; i++)
        if (strcmp(pass->list[i].kind, pass->list[parameter].kind) == 0) return true;
    return false;
}

struct table audit_table_parameters(const struct audit *audit, enum audit_rows rows) {
    struct table table = {0};
    const struct audit_pass *pass = &audit->reference;
    double worst = 0;
    table_column(&table, "gradient of", TABLE_LEFT);
    add_error_columns(&table, audit);
    if (stores_gradients(audit)) {
        char zero[20];
        snprintf(zero, sizeof zero, "zero x2^%d", audit_scale_now(audit));
        table_column(&table, zero, TABLE_RIGHT);
    }
    table_columns(&table, TABLE_RIGHT, "lost bf16", "fp16", "dB bf16", "fp16", NULL);
    for (int i = 0; i < pass->parameter_count; i++) {
        struct parameter_row row = {0};
        const char *label = pass->list[i].name, *kind = pass->list[i].kind;
        if (rows == AUDIT_WORST && is_known(pass, i)) continue;
        if (rows == AUDIT_WORST) label = kind;
        for (int k = i; k < (rows == AUDIT_WORST ? pass->parameter_count : i + 1); k++)
            if (k == i || strcmp(pass->list[k].kind, kind) == 0) find_parameter(&row, audit, k);
        add_parameter_row(&table, audit, label, &row);
        worst = fmax(worst, row.lost);
    }
    struct parameter_row all = {.lost = worst, .update = audit->update.all};
    for (int i = 0; i < AUDIT_FORMATS; i++) all.errors[i] = audit->formats[i].pass.gradient_error;
    add_parameter_row(&table, audit, "all", &all);
    return table;
}

const char *audit_note_words(char text[AUDIT_NOTE_MAX], const struct audit *audit) {
    int batches = audit->subject.repetitions;
    if (batches > PASS_TRIAL_BATCHES) batches = PASS_TRIAL_BATCHES;
    snprintf(text, AUDIT_NOTE_MAX,
             "Error of all gradients with one operation more in autocast.float32, in the first %d "
             "micro-batch%s",
             batches, batches == 1 ? "" : "es");
    return text;
}

struct table audit_table_words(const struct audit *audit) {
    struct table table = {0};
    table_column(&table, "one more in float32", TABLE_LEFT);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        if (!audit->formats[i].made) continue;
        table_column(&table, audit_name(i), TABLE_RIGHT);
        table_column(&table, "removes", TABLE_RIGHT);
    }
    for (int word = -1; word < AUTOCAST_SITE_COUNT; word++) {
        if (word >= 0 && !autocast_site_is_choice(word)) continue;
        table_cell(&table, "%s", word < 0 ? "(none)" : autocast_site_name(word));
        for (int i = 0; i < AUDIT_FORMATS; i++) {
            const struct audit_format *format = &audit->formats[i];
            if (!format->made) continue;
            if (word < 0) {
                add_percent(&table, format->pass.first_error);
                table_cell(&table, "-");
            } else if (format->trials[word].made) {
                add_percent(&table, format->trials[word].gradient_error);
                add_percent(&table, audit_format_removed(format, word));
            } else {
                bool kept = (format->given | format->needed) & (1u << word);
                table_cell(&table, kept ? "kept" : "-");
                table_cell(&table, "-");
            }
        }
    }
    return table;
}
