#include "model/plan/memory_text.h"

#include <inttypes.h>
#include <string.h>

#include "data/util/host_memory.h"
#include "data/util/min_max.h"
#include "data/util/table.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/plan/memory_costs.h"
#include "model/plan/memory_plan.h"

enum { COLUMNS = 4 }; /* number of configs that a table compares */

/* ---- byte counts */

struct memory_request memory_request(const struct config *config, struct backend *be, double gib) {
    struct memory_request request = {config, be, 0, SIZE_MAX, gib < 0};
    if (gib < 0) request.host = host_memory_pinnable();
    if (gib < 0) request.memory = backend_available(be);
    else request.memory = gib * 0x1p30 < 0x1p62 ? (size_t)(gib * 0x1p30) : (size_t)1 << 62;
    return request;
}

/* Unit of all byte counts in a table. */
struct unit {
    const char *name;
    double bytes;
    int digits;
};

static struct unit unit_for(size_t largest) {
    if (largest < (size_t)10 << 30) return (struct unit){"MiB", 0x1p20, 1};
    return (struct unit){"GiB", 0x1p30, 2};
}

static void number_cell(struct table *table, bool known, double value, int digits) {
    if (known) table_cell(table, "%.*f", digits, value);
    else table_cell(table, "-");
}

/* Writes an amount for a sentence: "2216.5 MiB". Returns text. */
enum { AMOUNT_MAX = 64 };
static const char *amount(char text[AMOUNT_MAX], size_t bytes) {
    struct unit unit = unit_for(bytes);
    snprintf(text, AMOUNT_MAX, "%.*f %s", unit.digits, (double)bytes / unit.bytes, unit.name);
    return text;
}

/* Returns the suffix of an amount that is the free memory, otherwise "". */
static const char *free_suffix(const struct memory_request *request) {
    return request->free ? " (free here)" : "";
}

static bool can_compute(const struct backend *be, enum config_precision precision) {
    bool bf16 = precision == CONFIG_PRECISION_BF16 || config_precision_quantizes(precision);
    return !bf16 || be->device.computes[DTYPE_BF16];
}

/* ---- tables of any configs */

static void print_table(FILE *out, struct table *table, const char *heading) {
    fprintf(out, "\n%s\n\n", heading);
    table_print(out, table);
}

/* Prints the parts of the plans of several configs in a common unit; those that the device cannot
 * compute have dashes. Parts that no plan has are left out. parameters > 0: only weights, gradients
 * and moments, in bytes per parameter. */
static int print_parts(FILE *out, const char *heading, const struct memory_request *request,
                       const struct config configs[COLUMNS], const char *const names[COLUMNS],
                       double parameters, struct error *error) {
    struct memory_plan plans[COLUMNS] = {{0}};
    struct table table = {0};
    size_t largest = 0;
    for (int i = 0; i < COLUMNS; i++) {
        if (can_compute(request->be, configs[i].precision) &&
            memory_plan_of(&plans[i], &configs[i], request->be, error))
            return -1;
        largest = MAX(largest, memory_total(&plans[i]));
    }
    struct unit unit = parameters > 0 ? (struct unit){"", parameters, 1} : unit_for(largest);
    table_column(&table, unit.name, TABLE_LEFT);
    for (int i = 0; i < COLUMNS; i++) table_column(&table, names[i], TABLE_RIGHT);
    for (enum memory_part part = 0; part < MEMORY_PARTS; part++) {
        bool all = part == MEMORY_PART_TOTAL && parameters > 0, used = false;
        for (int i = 0; i < COLUMNS; i++) used = used || memory_part_bytes(&plans[i], part) > 0;
        if (!used || (parameters > 0 && part >= MEMORY_PARTS_STATE && !all)) continue;
        table_cell(&table, "%s", all ? "all" : memory_part_name(part));
        for (int i = 0; i < COLUMNS; i++) {
            size_t bytes = all ? memory_state_bytes(&plans[i]) : memory_part_bytes(&plans[i], part);
            number_cell(&table, memory_total(&plans[i]) > 0, (double)bytes / unit.bytes,
                        unit.digits);
        }
    }
    print_table(out, &table, heading);
    return 0;
}

/* A table of largest micro-batches, and the notes that its cells need. */
struct batch_table {
    struct table table;
    bool no_state, limited;
};

/* Adds the largest micro-batch of a run. */
static int add_batch(struct batch_table *batches, const struct memory_request *request,
                     const struct config *config, struct error *error) {
    int64_t batch = MEMORY_NO_STATE;
    bool possible = can_compute(request->be, config->precision);
    if (possible && memory_largest_batch(&batch, config, request->be, request->memory, error))
        return -1;
    bool limited = batch >= 0 && !memory_batch_allowed(config, batch + 1);
    if (batch == MEMORY_NO_STATE) table_cell(&batches->table, "-");
    else table_cell(&batches->table, "%" PRId64 "%s", batch, limited ? "+" : "");
    batches->no_state |= possible && batch == MEMORY_NO_STATE;
    batches->limited |= limited;
    return 0;
}

static void print_batches(FILE *out, struct batch_table *batches, const char *name,
                          const struct memory_request *request) {
    char text[AMOUNT_MAX], heading[AMOUNT_MAX + 80];
    snprintf(heading, sizeof heading, "%s in %s%s", name, amount(text, request->memory),
             free_suffix(request));
    print_table(out, &batches->table, heading);
    if (batches->no_state) fprintf(out, "-: weights, gradients and moments alone are more\n");
    if (batches->limited) fprintf(out, "+: the limit of a config; more would fit in memory\n");
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
    struct unit unit = unit_for(own);
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
    if (!failed && table_rows(&table) > 0)
        print_table(out, &table,
                    advice ? "Their costs" : "Options that save memory, each applied alone");
    else table_free(&table);
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
    char hosted[AMOUNT_MAX], of_host[AMOUNT_MAX + 32] = "";
    const size_t host = memory_host(&advice->plan);
    amount(text, memory_total(&advice->plan));
    if (host > 0) snprintf(of_host, sizeof of_host, " and %s of the host", amount(hosted, host));
    if (status == RESULT_NONE) {
        fprintf(out,
                "No option makes it fit: the least is %s, of which weights, gradients\n"
                "and moments are %s. Choose a smaller model, or lower data.seq_len%s.\n",
                text, amount(state, memory_state_bytes(&advice->plan)),
                advice->config.adapter.type == CONFIG_ADAPTER_NONE
                    ? ",\nor train adapters: --set adapter.type=lora"
                    : "");
        return;
    }
    if (advice->bits == MEMORY_UNCHANGED) return;
    fprintf(out, "With these it takes %s%s,%s%s:\n\n", text, of_host, host > 0 ? "\n" : " ",
            effects[advice->bits]);
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
        status = memory_advise(&advice, request->config, request->be, request->memory,
                               request->host, error);
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

/* A configured precision with blocks takes the place of fp8. */
static const enum config_precision precisions[COLUMNS] = {
    CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16, CONFIG_PRECISION_FP16, CONFIG_PRECISION_FP8};

/* Prints what a run with state or layers in host memory moves in a step. */
static int print_traffic(FILE *out, const struct memory_request *request,
                         const struct config *config, struct error *error) {
    struct memory_plan plan;
    char there[AMOUNT_MAX], back[AMOUNT_MAX], time[MEMORY_SECONDS_MAX];
    const double rate = 1e-9 * request->be->device.link;
    const double offloaded = memory_offload_seconds(config, request->be);
    if (offloaded > 0)
        fprintf(out, "Offloaded state takes %s a step each way, at %g GB/s: an estimate.\n",
                memory_seconds_text(time, offloaded), rate);
    if (memory_plan_of(&plan, config, request->be, error)) return -1;
    const struct memory_copies copies = memory_copies_of(&plan, config);
    if (copies.to_device + copies.to_host == 0) return 0;
    fprintf(out, "A step copies %s of layers to the GPU", amount(there, (size_t)copies.to_device));
    if (copies.to_host > 0) fprintf(out, ", and %s back", amount(back, (size_t)copies.to_host));
    fprintf(out, ",\nwhile it computes: %s at %g GB/s, an estimate.\n",
            memory_seconds_text(time, memory_copy_seconds(config, request->be)), rate);
    return 0;
}

int memory_print_run(FILE *out, const struct memory_request *request, struct error *error) {
    struct config config = *request->config, configs[COLUMNS];
    char texts[COLUMNS][16];
    const char *names[COLUMNS];
    struct batch_table batches = {0};
    int status = 0;
    if (!config.autocast.enabled) { /* the precision has no effect */
        fprintf(out, "\nautocast.enabled is false, so this run computes in fp32; 16 bit is what "
                     "it\nwould be with autocast.\n");
        config.precision = CONFIG_PRECISION_FP32;
        config.autocast.enabled = true;
    }
    for (int i = 0; i < COLUMNS; i++) {
        bool blocks =
            precisions[i] == CONFIG_PRECISION_FP8 && config_precision_has_blocks(config.precision);
        enum config_precision precision = blocks ? config.precision : precisions[i];
        configs[i] = config;
        configs[i].precision = precision;
        snprintf(texts[i], sizeof texts[i], "%s%s", config_precision_name(precision),
                 precision == config.precision ? " *" : "");
        names[i] = texts[i];
    }
    if (print_parts(out, "Memory of this run in each precision (* as configured)", request, configs,
                    names, 0, error))
        return -1;
    if (print_traffic(out, request, &config, error)) return -1;
    if (print_options(out, request, NULL, error)) return -1;
    table_column(&batches.table, "", TABLE_LEFT);
    table_columns(&batches.table, TABLE_RIGHT, "recompute none", "gelu", "layer", NULL);
    for (int i = 0; i < COLUMNS; i++) {
        table_cell(&batches.table, "%s", names[i]);
        for (int level = 0; level <= RECOMPUTE_LAYER && status == 0; level++) {
            configs[i].train.recompute = (enum recompute)level;
            status = add_batch(&batches, request, &configs[i], error);
        }
    }
    if (status == 0) print_batches(out, &batches, "Largest train.micro_batch_size", request);
    else table_free(&batches.table);
    fputc('\n', out);
    return status || print_fit(out, request, false, error) < 0 ? -1 : 0;
}

/* ---- models of well-known sizes, each with defaults, one sequence at a time */

static const enum config_preset sizes[] = {
    CONFIG_PRESET_GPT2,         CONFIG_PRESET_GPT2_MEDIUM,  CONFIG_PRESET_GPT2_LARGE,
    CONFIG_PRESET_GPT2_XL,      CONFIG_PRESET_LLAMA_3_2_1B, CONFIG_PRESET_LLAMA_2_7B,
    CONFIG_PRESET_LLAMA_3_1_8B, CONFIG_PRESET_LLAMA_2_13B,  CONFIG_PRESET_LLAMA_2_70B,
};
enum { SIZES = sizeof sizes / sizeof *sizes, TOKENS_LEAST = 1024 /* the context of GPT-2 */ };

/* Training settings, from fp32 to the smallest memory in bf16. */
static const struct {
    const char *name;
    enum config_precision precision;
    bool lower; /* gradients and moments in 16 bit */
    enum recompute recompute;
} variants[] = {
    {"fp32", CONFIG_PRECISION_FP32, false, RECOMPUTE_NONE},
    {"bf16", CONFIG_PRECISION_BF16, false, RECOMPUTE_NONE},
    {"fp16", CONFIG_PRECISION_FP16, false, RECOMPUTE_NONE},
    {"lower", CONFIG_PRECISION_BF16, true, RECOMPUTE_NONE},
    {"layer", CONFIG_PRECISION_BF16, true, RECOMPUTE_LAYER},
};

/* Returns a run of a model with micro-batches of one sequence, as long as config's, but at least
 * TOKENS_LEAST. */
static struct config size_config(enum config_preset size, int variant,
                                 const struct config *config) {
    struct config out;
    config_defaults(&out);
    config_apply_preset(&out, size);
    out.model.preset = CONFIG_PRESET_NONE; /* the context length differs from the preset's */
    snprintf(out.name, sizeof out.name, "%s", config_preset_name(size));
    out.model.n_positions = out.data.seq_len = MAX(config->data.seq_len, TOKENS_LEAST);
    out.train.micro_batch_size = 1;
    out.precision = variants[variant].precision;
    if (variants[variant].lower) out.gradients.dtype = CONFIG_DTYPE_LOWER;
    if (variants[variant].lower) out.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    out.train.recompute = variants[variant].recompute;
    return out;
}

/* Adds the rows of a size: its plan in each column with the saving over fp32, and its largest
 * micro-batches. */
static int add_size(struct table *totals, struct batch_table *batches,
                    const struct memory_request *request, enum config_preset size,
                    struct error *error) {
    static const int compared[COLUMNS] = {0, 1, 3, 4}; /* all variants but fp16 */
    double fp32 = 0;
    table_cell(&batches->table, "%s", config_preset_name(size));
    table_cell(totals, "%s", config_preset_name(size));
    for (int i = 0; i < COLUMNS; i++) {
        struct memory_plan plan = {0};
        struct config config = size_config(size, compared[i], request->config);
        double count = (double)config_parameter_count(&config);
        bool possible = can_compute(request->be, config.precision);
        if (possible && memory_plan_of(&plan, &config, request->be, error)) return -1;
        double total = (double)memory_total(&plan);
        if (i == 0) fp32 = total;
        if (i == 0 && count < 1e9) table_cell(totals, "%.0f M", count / 1e6);
        else if (i == 0) table_cell(totals, "%.1f G", count / 1e9);
        number_cell(totals, possible, total / 0x1p30, 2);
        if (i > 0) number_cell(totals, possible, 100 * (1 - total / fp32), 1);
        if (add_batch(batches, request, &config, error)) return -1;
    }
    return 0;
}

int memory_print_sizes(FILE *out, const struct memory_request *request, struct error *error) {
    struct config configs[COLUMNS];
    const char *names[COLUMNS];
    struct table totals = {0};
    struct batch_table batches = {0};
    char heading[160];
    int status = 0;
    for (int i = 0; i < COLUMNS; i++) { /* largest model: its vectors are negligible */
        configs[i] = size_config(sizes[SIZES - 1], i, request->config);
        names[i] = variants[i].name;
    }
    if (print_parts(out, "Bytes per parameter of a large model", request, configs, names,
                    (double)config_parameter_count(&configs[0]), error))
        return -1;
    table_column(&totals, "model", TABLE_LEFT);
    table_columns(&totals, TABLE_RIGHT, "parameters", "fp32", "bf16", "%", "lower", "%", "layer",
                  "%", NULL);
    table_column(&batches.table, "model", TABLE_LEFT);
    table_columns(&batches.table, TABLE_RIGHT, "fp32", "bf16", "lower", "layer", NULL);
    for (int i = 0; i < SIZES && status == 0; i++)
        status = add_size(&totals, &batches, request, sizes[i], error);
    if (status) {
        table_free(&totals);
        table_free(&batches.table);
        return status;
    }
    snprintf(heading, sizeof heading,
             "Models from 124M to 70B: GiB for micro-batches of one sequence of %" PRId64
             "\ntokens, and how many %% less than fp32",
             configs[0].data.seq_len);
    print_table(out, &totals, heading);
    fprintf(out, "lower: bf16 with gradients.dtype=lower and optimizer.moments=bfloat16\n"
                 "layer: the same with train.recompute=layer\n");
    print_batches(out, &batches, "Their largest micro-batch", request);
    return 0;
}
