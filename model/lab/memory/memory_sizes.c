#include "model/lab/memory/memory_sizes.h"

#include <inttypes.h>

#include "model/config/config_check.h"
#include "model/config/config_keys.h"

const enum config_preset memory_sizes[MEMORY_SIZES] = {
    CONFIG_PRESET_GPT2,         CONFIG_PRESET_GPT2_MEDIUM,  CONFIG_PRESET_GPT2_LARGE,
    CONFIG_PRESET_GPT2_XL,      CONFIG_PRESET_LLAMA_3_2_1B, CONFIG_PRESET_LLAMA_2_7B,
    CONFIG_PRESET_LLAMA_3_1_8B, CONFIG_PRESET_LLAMA_2_13B,  CONFIG_PRESET_LLAMA_2_70B,
};

static const struct variant {
    const char *heading;
    enum config_precision precision;
    bool lower; /* gradients and moments */
    enum config_recompute recompute;
} variants[MEMORY_VARIANTS] = {
    [MEMORY_FP32] = {"fp32", CONFIG_PRECISION_FP32, false, CONFIG_RECOMPUTE_NONE},
    [MEMORY_BF16] = {"bf16", CONFIG_PRECISION_BF16, false, CONFIG_RECOMPUTE_NONE},
    [MEMORY_FP16] = {"fp16", CONFIG_PRECISION_FP16, false, CONFIG_RECOMPUTE_NONE},
    [MEMORY_LOWER] = {"lower", CONFIG_PRECISION_BF16, true, CONFIG_RECOMPUTE_NONE},
    [MEMORY_LAYER] = {"layer", CONFIG_PRECISION_BF16, true, CONFIG_RECOMPUTE_LAYER},
};

/* What the tables of totals and of micro-batches compare. */
enum { COMPARED = 4 };
static const enum memory_variant compared[COMPARED] = {MEMORY_FP32, MEMORY_BF16, MEMORY_LOWER,
                                                       MEMORY_LAYER};

void memory_size_config(struct config *out, enum config_preset size, enum memory_variant variant,
                        const struct config *config) {
    const struct variant *v = &variants[variant];
    int64_t length = config->data.seq_len;
    if (length < MEMORY_SIZES_TOKENS) length = MEMORY_SIZES_TOKENS;
    config_defaults(out);
    config_apply_preset(out, size);
    out->model.preset = CONFIG_PRESET_NONE; /* the context is another one */
    snprintf(out->name, sizeof out->name, "%s", config_preset_name(size));
    out->precision = v->precision;
    out->model.n_positions = length;
    out->data.seq_len = length;
    out->train.micro_batch_size = 1;
    out->train.recompute = v->recompute;
    if (v->lower) out->gradients.dtype = CONFIG_DTYPE_LOWER;
    if (v->lower) out->optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
}

static void explain_variants(FILE *out) {
    fprintf(out, "lower: bf16 with gradients.dtype=lower and optimizer.moments=bfloat16\n"
                 "layer: the same with train.recompute=layer\n");
}

/* ---- bytes per parameter */

/* Of a large model, where vectors do not count. */
static int print_bytes(FILE *out, const struct memory_question *question, struct error *error) {
    struct memory_plan plans[MEMORY_LAYER] = {{0}};
    struct table table = {0};
    double count = 0;
    table_column(&table, "", TABLE_LEFT);
    for (int i = 0; i < MEMORY_LAYER; i++) {
        struct config config;
        memory_size_config(&config, memory_sizes[MEMORY_SIZES - 1], (enum memory_variant)i,
                           question->config);
        count = (double)config_parameter_count(&config);
        table_column(&table, variants[i].heading, TABLE_RIGHT);
        if (!memory_can_compute(question->be, config.precision)) continue;
        if (memory_layout_of(&plans[i], &config, question->be, error)) {
            table_free(&table);
            return -1;
        }
        plans[i].total = memory_state_bytes(&plans[i]);
    }
    for (int row = 0; row <= MEMORY_PARTS_STATE; row++) {
        bool all = row == MEMORY_PARTS_STATE;
        enum memory_part part = all ? MEMORY_PART_TOTAL : (enum memory_part)row;
        table_cell(&table, "%s", all ? "all" : memory_part_name(part));
        for (int i = 0; i < MEMORY_LAYER; i++) {
            size_t bytes = memory_part_bytes(&plans[i], part);
            if (plans[i].total == 0) table_cell(&table, "-");
            else table_cell(&table, "%.1f", (double)bytes / count);
        }
    }
    fprintf(out, "\nBytes per parameter of a large model\n\n");
    table_print_text(out, &table, MEMORY_WIDTH);
    table_free(&table);
    return 0;
}

/* ---- totals */

static int size_row(struct table *table, const struct memory_question *question, int size,
                    struct error *error) {
    struct memory_plan plan;
    size_t fp32 = 0;
    for (int i = 0; i < COMPARED; i++) {
        struct config config;
        memory_size_config(&config, memory_sizes[size], compared[i], question->config);
        if (i == 0) {
            double count = (double)config_parameter_count(&config);
            table_cell(table, "%s", config_preset_name(memory_sizes[size]));
            table_cell(table, count < 1e9 ? "%.0f M" : "%.1f G", count / (count < 1e9 ? 1e6 : 1e9));
        }
        if (!memory_can_compute(question->be, config.precision)) {
            table_cell(table, "-");
            table_cell(table, "-");
            continue;
        }
        if (memory_plan_of(&plan, &config, question->be, error)) return -1;
        memory_bytes_cell(table, &memory_gib, plan.total);
        if (i == 0) fp32 = plan.total;
        else table_cell(table, "%.1f", 100 * (1 - (double)plan.total / (double)fp32));
    }
    return 0;
}

static int print_totals(FILE *out, const struct memory_question *question, struct error *error) {
    struct table table = {0};
    struct config config;
    int failed = 0;
    table_column(&table, "model", TABLE_LEFT);
    table_column(&table, "parameters", TABLE_RIGHT);
    for (int i = 0; i < COMPARED; i++) {
        table_column(&table, variants[compared[i]].heading, TABLE_RIGHT);
        if (i > 0) table_column(&table, "%", TABLE_RIGHT);
    }
    for (int size = 0; !failed && size < MEMORY_SIZES; size++)
        failed = size_row(&table, question, size, error);
    if (!failed) {
        memory_size_config(&config, memory_sizes[0], MEMORY_FP32, question->config);
        fprintf(out,
                "\nModels from 124M to 70B: GiB for micro-batches of one sequence of %" PRId64
                "\ntokens, and how many %% less than fp32\n",
                config.data.seq_len);
        fputc('\n', out);
        table_print_text(out, &table, MEMORY_WIDTH);
        explain_variants(out);
    }
    table_free(&table);
    return failed;
}

/* ---- the largest micro-batches */

static int print_size_batches(FILE *out, const struct memory_question *question,
                              struct error *error) {
    struct table table = {0};
    struct memory_signs signs = {false, false};
    int failed = 0;
    table_column(&table, "model", TABLE_LEFT);
    for (int i = 0; i < COMPARED; i++)
        table_column(&table, variants[compared[i]].heading, TABLE_RIGHT);
    for (int size = 0; !failed && size < MEMORY_SIZES; size++) {
        table_cell(&table, "%s", config_preset_name(memory_sizes[size]));
        for (int i = 0; !failed && i < COMPARED; i++) {
            struct config config;
            memory_size_config(&config, memory_sizes[size], compared[i], question->config);
            failed = memory_batch_cell(&table, &signs, question, &config, error);
        }
    }
    if (!failed) memory_print_batches(out, "Their largest micro-batch", &table, &signs, question);
    table_free(&table);
    return failed;
}

int memory_print_sizes(FILE *out, const struct memory_question *question, struct error *error) {
    if (print_bytes(out, question, error) || print_totals(out, question, error)) return -1;
    return print_size_batches(out, question, error);
}
