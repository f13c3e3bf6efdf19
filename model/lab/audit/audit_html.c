#include "model/lab/audit/audit_print.h"

#include <stdlib.h>

#include <stb/stb_ds.h>

#include "model/lab/audit/audit_tables.h"
#include "model/lab/page/chart_print.h"
#include "model/lab/page/page.h"
#include "model/lab/page/percent.h"

/* The picture of all values times 2^scale, with the places of fp16. */
static void print_histogram(FILE *out, const char *what, const struct magnitudes *magnitudes,
                            int scale) {
    int lowest, highest;
    double *x = NULL, *y = NULL;
    char label[80], zeros[PERCENT_MAX];
    if (!magnitudes_range(magnitudes, &lowest, &highest)) return;
    for (int e = lowest; e <= highest; e++) {
        arrput(x, e + scale);
        arrput(y, 100 * magnitudes_share(magnitudes, e));
    }
    double zero = (double)magnitudes->zeros / (double)magnitudes->count;
    snprintf(label, sizeof label, "%% of values; %s are exactly 0", percent(zeros, zero));
    struct chart_series series = {
        .x = x, .y = y, .count = (int)arrlen(x), .style = CHART_BARS, .colour = 0};
    struct chart_mark marks[] = {
        {lowest + scale - 0.5, FP16_ZERO - 0.5, "zero in fp16"},
        {FP16_ZERO - 0.5, FP16_NORMAL - 0.5, "subnormal"},
        {15.5, highest + scale + 0.5, "overflow"},
    };
    struct chart chart = {.title = what,
                          .x_label = "exponent of two",
                          .y_label = label,
                          .series = &series,
                          .series_count = 1,
                          .zero_y = true};
    struct chart_mark shown[3];
    for (int i = 0; i < 3; i++)
        if (marks[i].to > marks[i].from) shown[chart.mark_count++] = marks[i];
    chart.marks = shown;
    chart_print(out, &chart);
    arrfree(x);
    arrfree(y);
}

static struct magnitudes pooled(const struct audit *audit, bool gradients) {
    struct magnitudes all = {0};
    for (int place = 0; place < PLACES; place++)
        for (int layer = 0; layer < audit->reference.layers[place]; layer++)
            if (place_is_gradient(place) == gradients)
                magnitudes_merge(&all, &audit->reference.places[place][layer].magnitudes);
    return all;
}

static void print_histograms(FILE *out, const struct audit *audit, int scale) {
    char title[80];
    struct magnitudes activations = pooled(audit, false), gradients = pooled(audit, true);
    struct magnitudes weights = {0}, weight_gradients = {0};
    for (int i = 0; i < audit->reference.parameter_count; i++) {
        magnitudes_merge(&weights, &audit->reference.weights[i]);
        magnitudes_merge(&weight_gradients, &audit->reference.parameters[i].magnitudes);
    }
    page_charts_begin(out);
    print_histogram(out, "Gradients of activations", &gradients, 0);
    snprintf(title, sizeof title, "Gradients of activations times 2^%d", scale);
    print_histogram(out, title, &gradients, scale);
    print_histogram(out, "Activations", &activations, 0);
    print_histogram(out, "Weights", &weights, 0);
    print_histogram(out, "Gradients of weights", &weight_gradients, 0);
    page_charts_end(out);
}

static void print_table(FILE *out, struct table table) {
    table_print_html(out, &table);
    table_free(&table);
}

static void print_tables(FILE *out, const struct audit *audit, int scale) {
    char text[AUDIT_NOTE_MAX];
    page_heading(out, "One operation more in float32");
    page_paragraph(out, "%s, and the part of it that goes away.", audit_note_words(text, audit));
    print_table(out, audit_table_words(audit));
    page_heading(out, "Forward pass");
    page_paragraph(out, "Errors: root mean square of the difference from fp32, relative to fp32. "
                        "Of what fp16 stores: the share that becomes zero (at most 2^-25), the "
                        "share below 2^-14, which loses bits, and how often the largest value can "
                        "be doubled (room). \"-\": kept in fp32.");
    print_table(out, audit_table_forward(audit, AUDIT_EVERY));
    page_heading(out, "Backward pass");
    page_paragraph(out,
                   "The same for gradients of activations, at scale 1 and at 2^%d; room is at "
                   "that scale.",
                   scale);
    print_table(out, audit_table_backward(audit, AUDIT_EVERY, scale));
    page_heading(out, "Parameters");
    page_paragraph(out, "Errors of gradients; and, for one step, what masters of 16 bit would lose "
                        "of the updates, and the signal to noise of what they would keep.");
    print_table(out, audit_table_parameters(audit, AUDIT_EVERY));
}

static void print_advice(FILE *out, const struct audit *audit, const struct advice *advice) {
    page_verdict(out, advice->format == DTYPE_F32 ? PAGE_NEUTRAL : PAGE_GOOD,
                 dtype_name(advice->format), "is the format for this model on this device");
    for (ptrdiff_t i = 0; i < arrlen(advice->texts); i++)
        page_paragraph(out, "%s", advice->texts[i]);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        char *text = advice_config_text(advice, audit, i);
        if (text) page_code(out, text);
        free(text);
    }
}

static void print_head(FILE *out, const struct audit *audit) {
    struct audit_fact facts[AUDIT_FACTS];
    struct table table = {0};
    int count = audit_head(facts, audit);
    page_heading(out, "What was looked at");
    table_column(&table, facts[0].label, TABLE_LEFT);
    table_column(&table, facts[0].text, TABLE_LEFT);
    for (int i = 1; i < count; i++) {
        table_cell(&table, "%s", facts[i].label);
        table_cell(&table, "%s", facts[i].text);
    }
    print_table(out, table);
}

void audit_print_html(FILE *out, const struct audit *audit, const struct advice *advice) {
    char title[600], summary[200];
    int scale = audit_scale_now(audit);
    snprintf(title, sizeof title, "Precision audit of %s", audit->subject.config.name);
    audit_describe(summary, sizeof summary, audit);
    page_begin(out, title, summary);
    print_advice(out, audit, advice);
    print_head(out, audit);
    page_heading(out, "How large the values are");
    print_histograms(out, audit, scale);
    print_tables(out, audit, scale);
    page_end(out);
}
