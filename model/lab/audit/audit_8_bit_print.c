#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "model/lab/audit/audit_8_bit.h"
#include "model/lab/page/page.h"
#include "model/lab/page/table.h"
#include "model/lab/page/wrap.h"

static const char *const kinds[] = {"input", "weight", "gradient"};

static struct table operands_table(const struct eight_bit_audit *audit) {
    struct table table = {0};
    table_column(&table, "operand", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "rounded to", "to zero", "saturated", "SNR", "worst layer",
                  NULL);
    for (int i = 0; i < LINEAR_COUNT; i++)
        for (int kind = 0; audit->rounds[i] && kind < QUANTIZED_KINDS; kind++) {
            const struct eight_bit_operand *o = &audit->operands[i][kind];
            table_cell(&table, "%s %s", linear_words[i], kinds[kind]);
            table_cell(&table, "%s", dtype_name(audit->dtype[kind]));
            table_cell(&table, "%.2g %%", 100 * o->to_zero);
            table_cell(&table, "%.2g %%", 100 * o->saturated);
            table_cell(&table, "%.1f dB", o->snr);
            table_cell(&table, "%.1f dB, %d", o->worst_snr, o->worst_layer);
        }
    return table;
}

static struct table trials_table(const struct eight_bit_audit *audit) {
    struct table table = {0};
    table_column(&table, "computed in", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "loss", "against fp32", "error of gradients", NULL);
    for (int i = 0; i < audit->trial_count; i++) {
        const struct eight_bit_trial *trial = &audit->trials[i];
        table_cell(&table, "%s", trial->name);
        table_cell(&table, "%.5f", trial->loss);
        table_cell(&table, "%+.3f %%", 100 * (trial->loss / audit->loss - 1));
        table_cell(&table, "%.2f %%", 100 * trial->gradient_error);
    }
    return table;
}

enum { ADVICE_MAX = 4 };

struct advice_8_bit {
    int count;
    char texts[ADVICE_MAX][320];
    char config[80]; /* empty: nothing to change */
};

static void advise(struct advice_8_bit *advice, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void advise(struct advice_8_bit *advice, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(advice->texts[advice->count++], sizeof *advice->texts, format, arguments);
    va_end(arguments);
}

/* The layer whose operands cost most, if it costs anything to speak of. */
static struct advice_8_bit make_advice(const struct eight_bit_audit *audit) {
    const struct eight_bit_trial *fp8 = &audit->trials[1], *best = NULL;
    struct advice_8_bit advice = {0};
    for (int i = 6; i < audit->trial_count; i++)
        if (!best || audit->trials[i].gradient_error < best->gradient_error)
            best = &audit->trials[i];
    if (!isfinite(fp8->gradient_error)) {
        advise(&advice, "Something is not finite in fp8: use bf16.");
        return advice;
    }
    if (best) {
        double removed = 1 - best->gradient_error / fp8->gradient_error;
        bool much = removed > 0.25;
        if (much)
            snprintf(advice.config, sizeof advice.config, "\"autocast\": {\"lower16\": [\"%.*s\"]}",
                     (int)strcspn(best->name, " "), best->name);
        advise(&advice,
               much ? "%s removes %.0f %% of the error of the gradients: consider it."
                    : "No single layer stands out: %s removes %.0f %% of the error.",
               best->name, 100 * removed);
    }
    advise(&advice, "The recipe delayed is not among those tried: its scales come from the steps "
                    "before, and a few batches have none, so that here it would be tensor.");
    advise(&advice, "A few batches say how large errors are, not whether training stands them: "
                    "that says scripts/compare_precisions.sh with --precisions fp32,bf16,fp8.");
    return advice;
}

static void print_table(FILE *out, struct table table) {
    table_print_text(out, &table, WRAP_WIDTH);
    table_free(&table);
}

void eight_bit_audit_print(FILE *out, const struct eight_bit_audit *audit) {
    struct advice_8_bit advice = make_advice(audit);
    fprintf(out, "fp8: operands of linear layers in %d micro-batches, as configured\n\n",
            audit->batches);
    print_table(out, operands_table(audit));
    fprintf(out, "\nLoss and gradients; fp32 has a loss of %.5f\n\n", audit->loss);
    print_table(out, trials_table(audit));
    fputc('\n', out);
    for (int i = 0; i < advice.count; i++) {
        print_wrapped(out, advice.texts[i], 0, 2);
        if (i == 0 && advice.config[0]) fprintf(out, "    %s\n", advice.config);
    }
}

static void print_html_table(FILE *out, struct table table) {
    table_print_html(out, &table);
    table_free(&table);
}

void eight_bit_audit_print_html(FILE *out, const struct eight_bit_audit *audit) {
    struct advice_8_bit advice = make_advice(audit);
    char title[200], summary[80];
    snprintf(title, sizeof title, "Precision audit of %s: fp8", audit->config);
    snprintf(summary, sizeof summary, "%d micro-batches", audit->batches);
    page_begin(out, title, summary);
    for (int i = 0; i < advice.count; i++) {
        page_paragraph(out, "%s", advice.texts[i]);
        if (i == 0 && advice.config[0]) page_code(out, advice.config);
    }
    page_heading(out, "Operands of linear layers");
    page_paragraph(out,
                   "As the config rounds them, of all layers. Of the values that are not zero: "
                   "the share that became zero, and the share beyond the largest value; and "
                   "the signal to noise of what was rounded, in all and in the worst layer.");
    print_html_table(out, operands_table(audit));
    page_heading(out, "Loss and gradients");
    page_paragraph(out,
                   "fp32 has a loss of %.5f. Errors of gradients are relative to those of "
                   "fp32, over all parameters.",
                   audit->loss);
    print_html_table(out, trials_table(audit));
    page_end(out);
}

/* cJSON prints what is not finite as null. */
static void number(cJSON *object, const char *key, double value) {
    cJSON_AddNumberToObject(object, key, value);
}

static void add_operand(cJSON *list, const struct eight_bit_audit *audit, int layer, int kind) {
    const struct eight_bit_operand *operand = &audit->operands[layer][kind];
    cJSON *object = cJSON_CreateObject();
    cJSON_AddItemToArray(list, object);
    cJSON_AddStringToObject(object, "layer", linear_words[layer]);
    cJSON_AddStringToObject(object, "operand", kinds[kind]);
    cJSON_AddStringToObject(object, "format", dtype_name(audit->dtype[kind]));
    number(object, "to_zero", operand->to_zero);
    number(object, "saturated", operand->saturated);
    number(object, "snr", operand->snr);
    number(object, "worst_snr", operand->worst_snr);
    number(object, "worst_layer", operand->worst_layer);
}

void eight_bit_audit_print_json(FILE *out, const struct eight_bit_audit *audit) {
    struct advice_8_bit advice = make_advice(audit);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "config", audit->config);
    number(root, "repetitions", audit->batches);
    number(root, "loss", audit->loss);
    cJSON *operands = cJSON_AddArrayToObject(root, "operands");
    for (int i = 0; i < LINEAR_COUNT; i++)
        for (int kind = 0; audit->rounds[i] && kind < QUANTIZED_KINDS; kind++)
            add_operand(operands, audit, i, kind);
    cJSON *trials = cJSON_AddArrayToObject(root, "trials");
    for (int i = 0; i < audit->trial_count; i++) {
        cJSON *trial = cJSON_CreateObject();
        cJSON_AddItemToArray(trials, trial);
        cJSON_AddStringToObject(trial, "name", audit->trials[i].name);
        number(trial, "loss", audit->trials[i].loss);
        number(trial, "gradient_error", audit->trials[i].gradient_error);
    }
    cJSON *texts = cJSON_AddArrayToObject(root, "advice");
    for (int i = 0; i < advice.count; i++)
        cJSON_AddItemToArray(texts, cJSON_CreateString(advice.texts[i]));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (!text) abort(); /* as stb_ds does when memory is short */
    fprintf(out, "%s\n", text);
    free(text);
}
