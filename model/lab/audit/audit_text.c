#include "model/lab/audit/audit_print.h"

#include <stb/stb_ds.h>

#include "model/lab/audit/audit_tables.h"
#include "model/lab/page/wrap.h"

static void print_table(FILE *out, struct table table) {
    fprintf(out, "\n");
    table_print_text(out, &table, WRAP_WIDTH);
    table_free(&table);
}

static void print_head(FILE *out, const struct audit *audit) {
    struct audit_fact facts[AUDIT_FACTS];
    int count = audit_head(facts, audit);
    for (int i = 0; i < count; i++) {
        int column = fprintf(out, "%-10s ", facts[i].label);
        print_wrapped(out, facts[i].text, column, column);
    }
}

/* A paragraph whose further lines are indented. */
static void print_paragraph(FILE *out, const char *text) {
    print_wrapped(out, text, 0, 2);
}

static void print_legend(FILE *out, const struct audit *audit, int scale) {
    char text[600];
    fprintf(out, "\n");
    print_paragraph(out,
                    "Errors: root mean square of the difference from fp32, relative to fp32; of "
                    "each tensor the worst layer.");
    if (!audit->formats[AUDIT_FP16].made) return;
    snprintf(text, sizeof text,
             "In fp16, of the fp32 values that are not zero: zero |v| <= 2^-25, subnormal (loses "
             "bits) |v| < 2^-14, room log2(65504 / max |v|); for gradients times the scale, room "
             "at 2^%d. \"-\": kept in fp32.",
             scale);
    print_paragraph(out, text);
}

static void print_advice(FILE *out, const struct audit *audit, const struct advice *advice) {
    fprintf(out, "\n");
    for (ptrdiff_t i = 0; i < arrlen(advice->texts); i++) print_paragraph(out, advice->texts[i]);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        if (!audit->formats[i].made || !audit->formats[i].usable) continue;
        fprintf(out, "\nfor %s:\n", audit_name(i));
        advice_print_config(out, advice, audit, i);
    }
}

void audit_print_text(FILE *out, const struct audit *audit, const struct advice *advice) {
    char note[AUDIT_NOTE_MAX];
    int scale = audit_scale_now(audit);
    print_head(out, audit);
    print_legend(out, audit, scale);
    print_table(out, audit_table_forward(audit, AUDIT_WORST));
    print_table(out, audit_table_backward(audit, AUDIT_WORST, scale));
    fprintf(out, "\n");
    print_paragraph(out, "Gradients of parameters; and, if the master weights were 16 bit: updates "
                         "lost, and signal to noise of the update in decibels.");
    print_table(out, audit_table_parameters(audit, AUDIT_WORST));
    fprintf(out, "\n");
    print_paragraph(out, audit_note_words(note, audit));
    print_table(out, audit_table_words(audit));
    print_advice(out, audit, advice);
}
