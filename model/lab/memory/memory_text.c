#include "model/snapshot.h"
#include "model/lab/memory/memory_text.h"

#include <inttypes.h>

#include "model/config/config_keys.h"

enum { PRECISIONS = 4, LEVELS = CONFIG_RECOMPUTE_LAYER + 1 };

/* In the order of the columns. */
static const enum config_precision precisions[PRECISIONS] = {
    CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16, CONFIG_PRECISION_FP16, CONFIG_PRECISION_FP8};

/* The name, with a star if it is what the run is in. */
static const char *precision_text(char text[16], enum config_precision precision,
                                  const struct config *config) {
    snprintf(text, 16, "%s%s", config_precision_name(precision),
             precision == config->precision ? " *" : "");
    return text;
}

/* ---- the parts of a plan in each precision */

static int print_parts(FILE *out, const struct memory_question *question, struct error *error) {
    struct config config = *question->config;
    struct memory_plan plans[PRECISIONS] = {{0}};
    struct table table = {0};
    size_t largest = 0;
    for (int i = 0; i < PRECISIONS; i++) {
        config.precision = precisions[i];
        if (!memory_can_compute(question->be, precisions[i])) continue;
        if (memory_plan_of(&plans[i], &config, question->be, error)) return -1;
        if (plans[i].total > largest) largest = plans[i].total;
    }
    struct memory_unit unit = memory_unit_for(largest);
    table_column(&table, unit.name, TABLE_LEFT);
    for (int i = 0; i < PRECISIONS; i++) {
        char name[16];
        table_column(&table, precision_text(name, precisions[i], question->config), TABLE_RIGHT);
    }
    for (enum memory_part part = 0; part <= MEMORY_PART_SNAPSHOT; part++) {
        if (part == MEMORY_PART_EXCHANGE) continue; /* the run is that of one rank */
        if (part == MEMORY_PART_HOST && !question->config->offload.optimizer) continue;
        if (part == MEMORY_PART_SNAPSHOT && !snapshot_wanted(question->config)) continue;
        table_cell(&table, "%s", memory_part_name(part));
        for (int i = 0; i < PRECISIONS; i++) {
            if (!memory_can_compute(question->be, precisions[i])) table_cell(&table, "-");
            else memory_bytes_cell(&table, &unit, memory_part_bytes(&plans[i], part));
        }
    }
    fprintf(out, "\nMemory of this run in each precision (* as configured)\n\n");
    table_print_text(out, &table, MEMORY_WIDTH);
    table_free(&table);
    if (question->config->offload.optimizer)
        fprintf(out,
                "What the host keeps takes %.3g ms a step each way, at %g GB/s: an estimate.\n",
                1e3 * memory_offload_seconds(question->config, question->be),
                1e-9 * question->be->device.link);
    return 0;
}

/* ---- what each option saves */

static int print_savings(FILE *out, const struct memory_question *question, struct error *error) {
    const struct config *config = question->config;
    struct memory_plan own, plan;
    struct table table = {0};
    if (memory_plan_of(&own, config, question->be, error)) return -1;
    struct memory_unit unit = memory_unit_for(own.total);
    char heading[32];
    snprintf(heading, sizeof heading, "saves %s", unit.name);
    table_column(&table, "option", TABLE_LEFT);
    table_column(&table, heading, TABLE_RIGHT);
    table_column(&table, "%", TABLE_RIGHT);
    table_column(&table, "costs", TABLE_LEFT);
    int failed = 0;
    for (enum memory_option option = 0; !failed && option < MEMORY_OPTIONS; option++) {
        struct config other = *config;
        char text[MEMORY_SETTING_MAX], cost[MEMORY_COST_MAX];
        if (!memory_apply(&other, option, question->be)) continue;
        failed = memory_plan_of(&plan, &other, question->be, error);
        if (failed || plan.total >= own.total) continue;
        double saved = (double)(own.total - plan.total);
        memory_option_setting(text, option, 0, &other);
        memory_option_cost(cost, option, config, &other, question->be);
        table_cell(&table, "%s", text);
        table_cell(&table, "%.*f", unit.digits, saved / unit.bytes);
        table_cell(&table, "%.1f", 100 * saved / (double)own.total);
        table_cell(&table, "%s", cost);
    }
    if (!failed && table_rows(&table) > 0) {
        fprintf(out, "\nWhat saves memory, each by itself\n\n");
        table_print_text(out, &table, MEMORY_WIDTH);
    }
    table_free(&table);
    return failed;
}

/* ---- the largest micro-batches */

static int print_batches(FILE *out, const struct memory_question *question, struct error *error) {
    static const char *const headings[LEVELS] = {"recompute none", "gelu", "layer"};
    struct table table = {0};
    char text[16];
    struct memory_signs signs = {false, false};
    int failed = 0;
    table_column(&table, "", TABLE_LEFT);
    for (int level = 0; level < LEVELS; level++) table_column(&table, headings[level], TABLE_RIGHT);
    for (int i = 0; !failed && i < PRECISIONS; i++) {
        struct config config = *question->config;
        config.precision = precisions[i];
        table_cell(&table, "%s", precision_text(text, precisions[i], question->config));
        for (int level = 0; !failed && level < LEVELS; level++) {
            config.train.recompute = (enum config_recompute)level;
            failed = memory_batch_cell(&table, &signs, question, &config, error);
        }
    }
    if (!failed)
        memory_print_batches(out, "Largest train.micro_batch_size", &table, &signs, question);
    table_free(&table);
    return failed;
}

/* ---- whether it fits */

void memory_print_advice(FILE *out, const struct memory_advice *advice, int status) {
    static const char *const effects[] = {
        [MEMORY_SAME_BITS] = "with the same bits",
        [MEMORY_OTHER_ORDER] = "with the same steps but for the order of sums",
        [MEMORY_LESS_EXACT] = "but is less exact",
    };
    char amount[MEMORY_AMOUNT_MAX], setting[MEMORY_SETTING_MAX];
    memory_amount(amount, advice->plan.total);
    if (status == RESULT_NONE) {
        fprintf(out, "No option makes it fit: the least is %s, of which weights, gradients\n",
                amount);
        memory_amount(amount, memory_state_bytes(&advice->plan));
        fprintf(out, "and moments are %s. Choose a smaller model, or lower data.seq_len.\n",
                amount);
        return;
    }
    if (!memory_advice_changes(advice)) return;
    fprintf(out, "With these it takes %s, %s:\n\n", amount, effects[memory_advice_bits(advice)]);
    const char *end = ""; /* of the line before, which goes on if there is another */
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++)
        for (int key = 0;
             advice->chosen[i] && memory_option_setting(setting, i, key, &advice->config); key++) {
            fprintf(out, "%s  --set %s", end, setting);
            end = " \\\n";
        }
    fprintf(out, "\n");
}

/* memory_advise, and what it came to. Returns what it does. */
static int answer(FILE *out, struct memory_advice *advice, const struct memory_question *question,
                  struct error *error) {
    struct memory_plan plan;
    char needed[MEMORY_AMOUNT_MAX], memory[MEMORY_AMOUNT_MAX];
    if (memory_plan_of(&plan, question->config, question->be, error)) return -1;
    memory_amount(needed, plan.total);
    memory_question_amount(memory, question);
    int status = memory_advise(advice, question->config, question->be, question->memory, error);
    if (status < 0) return -1;
    if (plan.total <= question->memory) {
        fprintf(out, "This run fits: it takes %s of %s.\n", needed, memory);
        return status;
    }
    fprintf(out, "This run does not fit: it takes %s, and there are %s.\n", needed, memory);
    memory_print_advice(out, advice, status);
    return status;
}

int memory_print_fit(FILE *out, const struct memory_question *question, struct error *error) {
    struct memory_advice advice;
    struct table table = {0};
    int status = answer(out, &advice, question, error);
    if (status) return status;
    table_columns(&table, TABLE_LEFT, "option", "costs", NULL);
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++) {
        char setting[MEMORY_SETTING_MAX], cost[MEMORY_COST_MAX];
        if (!advice.chosen[i]) continue;
        memory_option_setting(setting, i, 0, &advice.config);
        memory_option_cost(cost, i, question->config, &advice.config, question->be);
        table_cell(&table, "%s", setting);
        table_cell(&table, "%s", cost);
    }
    if (table_rows(&table) > 0) {
        fputc('\n', out);
        table_print_text(out, &table, MEMORY_WIDTH);
    }
    table_free(&table);
    return 0;
}

int memory_print_run(FILE *out, const struct memory_question *question, struct error *error) {
    struct config config = *question->config;
    struct memory_question other = *question;
    if (!config.autocast.enabled) { /* then a precision is a word without a meaning */
        fprintf(out, "\nautocast.enabled is false, so this run computes in fp32; 16 bit is what "
                     "it\nwould be with autocast.\n");
        config.precision = CONFIG_PRECISION_FP32;
        config.autocast.enabled = true;
        other.config = &config;
    }
    if (print_parts(out, &other, error) || print_savings(out, question, error) ||
        print_batches(out, &other, error))
        return -1;
    struct memory_advice advice;
    fputc('\n', out);
    return answer(out, &advice, question, error) < 0 ? -1 : 0;
}
