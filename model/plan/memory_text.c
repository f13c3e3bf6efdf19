#include "model/plan/memory_text.h"

#include <inttypes.h>

#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/core/snapshot.h"

enum { COLUMNS = 4 }; /* number of configs that a table compares */

/* ---- byte counts */

struct memory_request memory_request(const struct config *config, struct backend *be, double gib) {
    struct memory_request request = {config, be, 0, gib < 0};
    if (gib < 0) request.memory = backend_available(be);
    else request.memory = gib * 0x1p30 < 0x1p62 ? (size_t)(gib * 0x1p30) : (size_t)1 << 62;
    return request;
}

struct memory_unit memory_unit_for(size_t largest) {
    if (largest < (size_t)10 << 30) return (struct memory_unit){"MiB", 0x1p20, 1};
    return (struct memory_unit){"GiB", 0x1p30, 2};
}

void memory_bytes_cell(struct table *table, const struct memory_unit *unit, size_t bytes) {
    table_cell(table, "%.*f", unit->digits, (double)bytes / unit->bytes);
}

/* Writes an amount for a sentence: "2216.5 MiB". Returns text. */
enum { AMOUNT_MAX = 64 };
static const char *amount(char text[AMOUNT_MAX], size_t bytes) {
    struct memory_unit unit = memory_unit_for(bytes);
    snprintf(text, AMOUNT_MAX, "%.*f %s", unit.digits, (double)bytes / unit.bytes, unit.name);
    return text;
}

/* Returns the suffix of an amount that is the free memory, otherwise "". */
static const char *free_suffix(const struct memory_request *request) {
    return request->free ? " (free here)" : "";
}

static bool can_compute(const struct backend *be, enum config_precision precision) {
    bool bf16 = precision == CONFIG_PRECISION_BF16 || precision == CONFIG_PRECISION_FP8;
    return !bf16 || be->device.computes[DTYPE_BF16];
}

/* ---- tables of any configs */

static bool has_row(enum memory_part part, const struct config *config, bool only_state) {
    if (only_state) return part < MEMORY_PARTS_STATE || part == MEMORY_PART_TOTAL;
    if (part == MEMORY_PART_HOST) return config->offload.optimizer;
    if (part == MEMORY_PART_SNAPSHOT) return snapshot_wanted(config);
    return part != MEMORY_PART_EXCHANGE; /* one rank exchanges nothing */
}

/* Prints the memory parts of several configs. If parameters > 0, prints only weights, gradients and
 * moments, in bytes per parameter. */
static int print_parts(FILE *out, const char *heading, const struct memory_request *request,
                       const struct config configs[COLUMNS], const char *const names[COLUMNS],
                       double parameters, struct error *error) {
    struct memory_plan plans[COLUMNS] = {{0}};
    struct table table = {0};
    size_t largest = 0;
    for (int i = 0; i < COLUMNS; i++) {
        if (!can_compute(request->be, configs[i].precision)) continue;
        if (memory_plan_of(&plans[i], &configs[i], request->be, error)) return -1;
        if (memory_total(&plans[i]) > largest) largest = memory_total(&plans[i]);
    }
    struct memory_unit unit = memory_unit_for(largest);
    if (parameters > 0) unit = (struct memory_unit){"", parameters, 1};
    table_column(&table, unit.name, TABLE_LEFT);
    for (int i = 0; i < COLUMNS; i++) table_column(&table, names[i], TABLE_RIGHT);
    for (enum memory_part part = 0; part < MEMORY_PARTS; part++) {
        bool all = part == MEMORY_PART_TOTAL && parameters > 0;
        if (!has_row(part, request->config, parameters > 0)) continue;
        table_cell(&table, "%s", all ? "all" : memory_part_name(part));
        for (int i = 0; i < COLUMNS; i++) {
            size_t bytes = all ? memory_state_bytes(&plans[i]) : memory_part_bytes(&plans[i], part);
            if (can_compute(request->be, configs[i].precision))
                memory_bytes_cell(&table, &unit, bytes);
            else table_cell(&table, "-");
        }
    }
    fprintf(out, "\n%s\n\n", heading);
    table_print_text(out, &table, MEMORY_WIDTH);
    table_free(&table);
    return 0;
}

/* Sets *config to the run of a table cell. Returns the name of its row, which may be written into
 * text. */
enum { LABEL_MAX = 16 };
typedef const char *chooser(struct config *config, char text[LABEL_MAX],
                            const struct memory_request *request, int row, int column);

/* Prints the largest micro-batch of each run into a table that has its columns. Frees the table. */
static int print_batches(FILE *out, const char *heading, const struct memory_request *request,
                         struct table *table, chooser *choose, int rows, int columns,
                         struct error *error) {
    char text[AMOUNT_MAX];
    bool no_state = false, limited = false;
    int failed = 0;
    for (int i = 0; !failed && i < rows * columns; i++) {
        struct config config;
        int64_t batch = MEMORY_NO_STATE;
        const char *name = choose(&config, text, request, i / columns, i % columns);
        if (i % columns == 0) table_cell(table, "%s", name);
        bool possible = can_compute(request->be, config.precision);
        if (possible)
            failed = memory_largest_batch(&batch, &config, request->be, request->memory, error);
        bool limit = batch >= 0 && !memory_batch_allowed(&config, batch + 1);
        if (batch == MEMORY_NO_STATE) table_cell(table, "-");
        else table_cell(table, "%" PRId64 "%s", batch, limit ? "+" : "");
        no_state = no_state || (possible && batch == MEMORY_NO_STATE);
        limited = limited || limit;
    }
    if (!failed) {
        fprintf(out, "\n%s in %s%s\n\n", heading, amount(text, request->memory),
                free_suffix(request));
        table_print_text(out, table, MEMORY_WIDTH);
        if (no_state) fprintf(out, "-: weights, gradients and moments alone are more\n");
        if (limited) fprintf(out, "+: the limit of a config; more would fit in memory\n");
    }
    table_free(table);
    return failed;
}

/* Prints options with their costs: those of advice together, or, if advice is NULL, each applied
 * alone with what it saves. */
static int print_options(FILE *out, const struct memory_request *request,
                         const struct memory_advice *advice, struct error *error) {
    const struct config *config = request->config;
    struct memory_plan plan;
    struct table table = {0};
    char setting[MEMORY_SETTING_MAX], cost[MEMORY_COST_MAX], heading[32];
    if (memory_plan_of(&plan, config, request->be, error)) return -1;
    size_t own = memory_total(&plan);
    struct memory_unit unit = memory_unit_for(own);
    snprintf(heading, sizeof heading, "saves %s", unit.name);
    table_column(&table, "option", TABLE_LEFT);
    if (!advice) table_columns(&table, TABLE_RIGHT, heading, "%", NULL);
    table_column(&table, "costs", TABLE_LEFT);
    int failed = 0;
    for (enum memory_option option = 0; !failed && option < MEMORY_OPTIONS; option++) {
        struct config other = advice ? advice->config : *config;
        if (advice ? !advice->chosen[option] : !memory_apply(&other, option, request->be)) continue;
        failed = memory_plan_of(&plan, &other, request->be, error);
        if (failed || (!advice && memory_total(&plan) >= own)) continue;
        double saved = (double)own - (double)memory_total(&plan);
        memory_option_setting(setting, option, 0, &other);
        memory_option_cost(cost, option, config, &other, request->be);
        table_cell(&table, "%s", setting);
        if (!advice) table_cell(&table, "%.*f", unit.digits, saved / unit.bytes);
        if (!advice) table_cell(&table, "%.1f", 100 * saved / (double)own);
        table_cell(&table, "%s", cost);
    }
    if (!failed && table_rows(&table) > 0) {
        fputs(advice ? "\n" : "\nOptions that save memory, each applied alone\n\n", out);
        table_print_text(out, &table, MEMORY_WIDTH);
    }
    table_free(&table);
    return failed;
}

/* ---- fit and advice */

void memory_print_advice(FILE *out, const struct memory_advice *advice, int status) {
    static const char *const effects[] = {
        [MEMORY_SAME_BITS] = "with the same bits",
        [MEMORY_OTHER_ORDER] = "with the same steps but for the order of sums",
        [MEMORY_LESS_EXACT] = "but is less exact",
    };
    char text[AMOUNT_MAX], state[AMOUNT_MAX], setting[MEMORY_SETTING_MAX];
    amount(text, memory_total(&advice->plan));
    if (status == RESULT_NONE) {
        fprintf(out,
                "No option makes it fit: the least is %s, of which weights, gradients\n"
                "and moments are %s. Choose a smaller model, or lower data.seq_len.\n",
                text, amount(state, memory_state_bytes(&advice->plan)));
        return;
    }
    if (advice->bits == MEMORY_UNCHANGED) return;
    fprintf(out, "With these it takes %s, %s:\n\n", text, effects[advice->bits]);
    const char *end = ""; /* end of the previous line: a backslash if another follows */
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++)
        for (int key = 0;
             advice->chosen[i] && memory_option_setting(setting, i, key, &advice->config); key++) {
            fprintf(out, "%s  --set %s", end, setting);
            end = " \\\n";
        }
    fprintf(out, "\n");
}

/* Prints whether the run fits, and advice if not. Returns 0, RESULT_NONE or -1 with a message. */
static int print_fit(FILE *out, const struct memory_request *request, bool with_costs,
                     struct error *error) {
    struct memory_advice advice;
    struct memory_plan plan;
    char needed[AMOUNT_MAX], memory[AMOUNT_MAX];
    if (memory_plan_of(&plan, request->config, request->be, error)) return -1;
    bool fits = memory_total(&plan) <= request->memory;
    amount(needed, memory_total(&plan));
    amount(memory, request->memory);
    int status = 0;
    if (!fits)
        status = memory_advise(&advice, request->config, request->be, request->memory, error);
    if (status < 0) return -1;
    fprintf(out, "This run %s: it takes %s%s%s%s.\n", fits ? "fits" : "does not fit", needed,
            fits ? " of " : ", and there are ", memory, free_suffix(request));
    if (fits) return 0;
    memory_print_advice(out, &advice, status);
    return status == 0 && with_costs ? print_options(out, request, &advice, error) : status;
}

int memory_print_fit(FILE *out, const struct memory_request *request, struct error *error) {
    return print_fit(out, request, true, error);
}

/* ---- a run */

static const enum config_precision precisions[COLUMNS] = {
    CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16, CONFIG_PRECISION_FP16, CONFIG_PRECISION_FP8};

/* Sets *config to the run in the precision of `row`, with a level of recomputing. The name of the
 * run's own precision has a star. */
static const char *choose_precision(struct config *config, char text[LABEL_MAX],
                                    const struct memory_request *request, int row, int level) {
    bool own = precisions[row] == request->config->precision;
    *config = *request->config;
    config->precision = precisions[row];
    config->train.recompute = (enum config_recompute)level;
    snprintf(text, LABEL_MAX, "%s%s", config_precision_name(config->precision), own ? " *" : "");
    return text;
}

int memory_print_run(FILE *out, const struct memory_request *request, struct error *error) {
    struct config config = *request->config, configs[COLUMNS];
    struct memory_request other = *request;
    char texts[COLUMNS][LABEL_MAX];
    const char *names[COLUMNS];
    struct table table = {0};
    if (!config.autocast.enabled) { /* the precision has no effect */
        fprintf(out, "\nautocast.enabled is false, so this run computes in fp32; 16 bit is what "
                     "it\nwould be with autocast.\n");
        config.precision = CONFIG_PRECISION_FP32;
        config.autocast.enabled = true;
        other.config = &config;
    }
    for (int i = 0; i < COLUMNS; i++)
        names[i] = choose_precision(&configs[i], texts[i], &other, i, (int)config.train.recompute);
    if (print_parts(out, "Memory of this run in each precision (* as configured)", &other, configs,
                    names, 0, error))
        return -1;
    if (config.offload.optimizer)
        fprintf(out, "Offloaded state takes %.3g ms a step each way, at %g GB/s: an estimate.\n",
                1e3 * memory_offload_seconds(&config, request->be),
                1e-9 * request->be->device.link);
    if (print_options(out, request, NULL, error)) return -1;
    table_column(&table, "", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "recompute none", "gelu", "layer", NULL);
    if (print_batches(out, "Largest train.micro_batch_size", &other, &table, choose_precision,
                      COLUMNS, CONFIG_RECOMPUTE_LAYER + 1, error))
        return -1;
    fputc('\n', out);
    return print_fit(out, request, false, error) < 0 ? -1 : 0;
}

/* ---- models of well-known sizes */

const enum config_preset memory_sizes[MEMORY_SIZES] = {
    CONFIG_PRESET_GPT2,         CONFIG_PRESET_GPT2_MEDIUM,  CONFIG_PRESET_GPT2_LARGE,
    CONFIG_PRESET_GPT2_XL,      CONFIG_PRESET_LLAMA_3_2_1B, CONFIG_PRESET_LLAMA_2_7B,
    CONFIG_PRESET_LLAMA_3_1_8B, CONFIG_PRESET_LLAMA_2_13B,  CONFIG_PRESET_LLAMA_2_70B,
};

static const char *const variant_names[MEMORY_VARIANTS] = {"fp32", "bf16", "fp16", "lower",
                                                           "layer"};

/* Columns of the tables of totals and of micro-batches. */
static const enum memory_variant compared[COLUMNS] = {MEMORY_FP32, MEMORY_BF16, MEMORY_LOWER,
                                                      MEMORY_LAYER};

void memory_size_config(struct config *out, enum config_preset size, enum memory_variant variant,
                        const struct config *config) {
    int64_t length = config->data.seq_len;
    if (length < MEMORY_SIZES_TOKENS) length = MEMORY_SIZES_TOKENS;
    config_defaults(out);
    config_apply_preset(out, size);
    out->model.preset = CONFIG_PRESET_NONE; /* the context length differs from the preset's */
    snprintf(out->name, sizeof out->name, "%s", config_preset_name(size));
    out->precision = variant == MEMORY_FP32   ? CONFIG_PRECISION_FP32
                     : variant == MEMORY_FP16 ? CONFIG_PRECISION_FP16
                                              : CONFIG_PRECISION_BF16;
    out->model.n_positions = length;
    out->data.seq_len = length;
    out->train.micro_batch_size = 1;
    if (variant == MEMORY_LAYER) out->train.recompute = CONFIG_RECOMPUTE_LAYER;
    if (variant >= MEMORY_LOWER) out->gradients.dtype = CONFIG_DTYPE_LOWER;
    if (variant >= MEMORY_LOWER) out->optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
}

static const char *choose_size(struct config *config, char text[LABEL_MAX],
                               const struct memory_request *request, int row, int column) {
    (void)text;
    memory_size_config(config, memory_sizes[row], compared[column], request->config);
    return config_preset_name(memory_sizes[row]);
}

/* Adds the row of a size: its plan in each column, and the saving over fp32. */
static int size_row(struct table *table, const struct memory_request *request, int size,
                    struct error *error) {
    const struct memory_unit unit = {"GiB", 0x1p30, 2};
    double fp32 = 0;
    for (int i = 0; i < COLUMNS; i++) {
        struct memory_plan plan;
        struct config config;
        const char *name = choose_size(&config, NULL, request, size, i);
        double count = (double)config_parameter_count(&config);
        bool possible = can_compute(request->be, config.precision);
        if (possible && memory_plan_of(&plan, &config, request->be, error)) return -1;
        if (i == 0) table_cell(table, "%s", name);
        if (i == 0)
            table_cell(table, count < 1e9 ? "%.0f M" : "%.1f G", count / (count < 1e9 ? 1e6 : 1e9));
        if (possible) memory_bytes_cell(table, &unit, memory_total(&plan));
        else table_cell(table, "-");
        if (i == 0) fp32 = (double)memory_total(&plan);
        else if (possible)
            table_cell(table, "%.1f", 100 * (1 - (double)memory_total(&plan) / fp32));
        else table_cell(table, "-");
    }
    return 0;
}

static int print_totals(FILE *out, const struct memory_request *request, struct error *error) {
    struct table table = {0};
    struct config config;
    int failed = 0;
    choose_size(&config, NULL, request, 0, 0);
    table_column(&table, "model", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "parameters", "fp32", "bf16", "%", "lower", "%", "layer",
                  "%", NULL);
    for (int size = 0; !failed && size < MEMORY_SIZES; size++)
        failed = size_row(&table, request, size, error);
    if (!failed) {
        fprintf(out,
                "\nModels from 124M to 70B: GiB for micro-batches of one sequence of %" PRId64
                "\ntokens, and how many %% less than fp32\n\n",
                config.data.seq_len);
        table_print_text(out, &table, MEMORY_WIDTH);
        fprintf(out, "lower: bf16 with gradients.dtype=lower and optimizer.moments=bfloat16\n"
                     "layer: the same with train.recompute=layer\n");
    }
    table_free(&table);
    return failed;
}

int memory_print_sizes(FILE *out, const struct memory_request *request, struct error *error) {
    struct config configs[COLUMNS];
    struct table table = {0};
    for (int i = 0; i < COLUMNS; i++) /* largest model: its vectors are negligible */
        memory_size_config(&configs[i], memory_sizes[MEMORY_SIZES - 1], (enum memory_variant)i,
                           request->config);
    if (print_parts(out, "Bytes per parameter of a large model", request, configs, variant_names,
                    (double)config_parameter_count(&configs[0]), error) ||
        print_totals(out, request, error))
        return -1;
    table_column(&table, "model", TABLE_LEFT);
    table_columns(&table, TABLE_RIGHT, "fp32", "bf16", "lower", "layer", NULL);
    return print_batches(out, "Their largest micro-batch", request, &table, choose_size,
                         MEMORY_SIZES, COLUMNS, error);
}
