#include "model/lab/memory/memory_figures.h"

#include <inttypes.h>

const struct memory_unit memory_gib = {"GiB", 0x1p30, 2};

struct memory_question memory_question(const struct config *config, struct backend *be,
                                       double gib) {
    struct memory_question question = {config, be, 0, gib < 0};
    if (gib < 0) question.memory = backend_available(be);
    else question.memory = gib * 0x1p30 < 0x1p62 ? (size_t)(gib * 0x1p30) : (size_t)1 << 62;
    return question;
}

bool memory_can_compute(const struct backend *be, enum config_precision precision) {
    bool bf16 = precision == CONFIG_PRECISION_BF16 || precision == CONFIG_PRECISION_FP8;
    return !bf16 || be->device.computes[DTYPE_BF16];
}

struct memory_unit memory_unit_for(size_t largest) {
    if (largest < (size_t)10 << 30) return (struct memory_unit){"MiB", 0x1p20, 1};
    return memory_gib;
}

void memory_bytes_cell(struct table *table, const struct memory_unit *unit, size_t bytes) {
    table_cell(table, "%.*f", unit->digits, (double)bytes / unit->bytes);
}

const char *memory_amount(char text[MEMORY_AMOUNT_MAX], size_t bytes) {
    struct memory_unit unit = memory_unit_for(bytes);
    snprintf(text, MEMORY_AMOUNT_MAX, "%.*f %s", unit.digits, (double)bytes / unit.bytes,
             unit.name);
    return text;
}

const char *memory_question_amount(char text[MEMORY_AMOUNT_MAX],
                                   const struct memory_question *question) {
    char amount[MEMORY_AMOUNT_MAX];
    memory_amount(amount, question->memory);
    snprintf(text, MEMORY_AMOUNT_MAX, "%.40s%s", amount, question->free ? " (free here)" : "");
    return text;
}

int memory_batch_cell(struct table *table, struct memory_signs *signs,
                      const struct memory_question *question, const struct config *config,
                      struct error *error) {
    int64_t batch = MEMORY_NO_STATE;
    bool possible = memory_can_compute(question->be, config->precision);
    if (possible && memory_largest_batch(&batch, config, question->be, question->memory, error))
        return -1;
    if (batch == MEMORY_NO_STATE) {
        table_cell(table, "-");
        signs->state = signs->state || possible;
        return 0;
    }
    bool limit = !memory_batch_allowed(config, batch + 1);
    table_cell(table, "%" PRId64 "%s", batch, limit ? "+" : "");
    signs->limit = signs->limit || limit;
    return 0;
}

void memory_print_batches(FILE *out, const char *heading, const struct table *table,
                          const struct memory_signs *signs,
                          const struct memory_question *question) {
    char text[MEMORY_AMOUNT_MAX];
    fprintf(out, "\n%s in %s\n\n", heading, memory_question_amount(text, question));
    table_print_text(out, table, MEMORY_WIDTH);
    if (signs->state) fprintf(out, "-: weights, gradients and moments alone are more\n");
    if (signs->limit)
        fprintf(out, "+: there may be room for more, but a config can ask for no more\n");
}
