#include "model/lab/audit_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/error.h"
#include "data/files.h"
#include "model/lab/audit_json.h"
#include "model/lab/audit_page.h"
#include "model/lab/audit_tables.h"

enum { WIDTH = 80 };

void audit_describe(char *text, size_t size, const struct audit *audit) {
    const struct subject *subject = &audit->subject;
    const struct config *config = &subject->config;
    snprintf(text, size,
             "%d micro-batch%s of %" PRId64 " x %" PRId64 " tokens from step %" PRId64 " on",
             subject->repetitions, subject->repetitions == 1 ? "" : "es",
             config->train.micro_batch_size, config->data.seq_len, subject->step + 1);
}

/* Words of text in lines of at most WIDTH columns; further lines are indented. */
static void print_wrapped(FILE *out, const char *text) {
    int column = 0;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > 0 && column + 1 + length > WIDTH) {
            fprintf(out, "\n ");
            column = 1;
        }
        column += fprintf(out, "%s%.*s", column > 0 ? " " : "", length, text);
        text += length + (text[length] == ' ');
    }
    fprintf(out, "\n");
}

static void print_table(FILE *out, struct table *table) {
    fprintf(out, "\n");
    table_print_text(out, table, WIDTH);
    table_free(table);
}

static void print_losses(FILE *out, const struct audit *audit) {
    fprintf(out, "loss       fp32 %.6f", audit->reference.loss);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        const struct audit_format *format = &audit->formats[i];
        if (!format->made) continue;
        fprintf(out, ", %s %.6f", dtype_name(format->dtype), format->pass.loss);
    }
    fprintf(out, "\n");
}

static void print_head(FILE *out, const struct audit *audit) {
    char text[200];
    const struct subject *subject = &audit->subject;
    audit_describe(text, sizeof text, audit);
    fprintf(out, "audit of   %s\nweights    %s\nlooks at   %s\ndevice     %.69s\n",
            subject->config.name, subject->from, text, subject->be.description);
    if (audit->formats[AUDIT_FP16].made)
        fprintf(out, "loss scale %.12g, %s\n", (double)subject->loss_scale,
                subject->settled ? "where the run in fp16 has it" : "loss_scale.init_scale");
    print_losses(out, audit);
}

static void print_legend(FILE *out, const struct audit *audit, int scale) {
    char text[600];
    fprintf(out, "\n");
    print_wrapped(out, "Errors: root mean square of the difference from fp32, relative to fp32; of "
                       "each tensor the worst layer.");
    if (!audit->formats[AUDIT_FP16].made) return;
    snprintf(text, sizeof text,
             "In fp16, of the fp32 values that are not zero: zero |v| <= 2^-25, subnormal (loses "
             "bits) |v| < 2^-14, room log2(65504 / max |v|); for gradients times the scale, room "
             "at 2^%d. \"-\": kept in fp32.",
             scale);
    print_wrapped(out, text);
}

static void print_advice(FILE *out, const struct audit *audit, const struct advice *advice) {
    fprintf(out, "\n");
    for (ptrdiff_t i = 0; i < arrlen(advice->texts); i++) print_wrapped(out, advice->texts[i]);
    for (int i = 0; i < AUDIT_FORMATS; i++) {
        if (!audit->formats[i].made || !audit->formats[i].usable) continue;
        fprintf(out, "\nfor %s:\n", dtype_name(audit->formats[i].dtype));
        advice_print_config(out, advice, audit, i);
    }
}

void audit_print(FILE *out, const struct audit *audit, const struct advice *advice) {
    struct table forward = {0}, backward = {0}, parameters = {0}, words = {0};
    char note[AUDIT_NOTE_MAX];
    int scale = audit_scale_now(audit);
    print_head(out, audit);
    print_legend(out, audit, scale);
    audit_table_forward(&forward, audit, AUDIT_WORST);
    print_table(out, &forward);
    audit_table_backward(&backward, audit, AUDIT_WORST, scale);
    print_table(out, &backward);
    fprintf(out, "\n");
    print_wrapped(out, "Gradients of parameters; and, if the master weights were 16 bit: updates "
                       "lost, and signal to noise of the update in decibels.");
    audit_table_parameters(&parameters, audit, AUDIT_WORST);
    print_table(out, &parameters);
    fprintf(out, "\n");
    print_wrapped(out, audit_note_words(note, audit));
    audit_table_words(&words, audit);
    print_table(out, &words);
    print_advice(out, audit, advice);
}

/* Prints into memory with `print` and writes that as a file. */
static int write_file(const char *folder, const char *name,
                      void (*print)(FILE *, const struct audit *, const struct advice *),
                      const struct audit *audit, const struct advice *advice, char *error) {
    char path[FILE_PATH_MAX], *text = NULL;
    size_t size;
    if (file_path_join(path, folder, name, error)) return -1;
    FILE *file = open_memstream(&text, &size);
    if (!file) return fail(error, "out of memory for %.500s", path);
    print(file, audit, advice);
    bool complete = !ferror(file);
    int status = -1;
    if (fclose(file) || !complete) fail(error, "out of memory for %.500s", path);
    else status = file_write_whole(path, text, size, NULL, error);
    free(text);
    return status;
}

int audit_write(const struct audit *audit, const struct advice *advice, const char *folder,
                char *error) {
    if (directory_create(folder, error)) return -1;
    if (write_file(folder, "audit.json", audit_print_json, audit, advice, error)) return -1;
    return write_file(folder, "audit.html", audit_print_page, audit, advice, error);
}
