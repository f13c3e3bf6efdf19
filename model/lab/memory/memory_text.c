#include "model/lab/memory/memory_text.h"

#include <inttypes.h>
#include <string.h>

#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/lab/page/table.h"

enum { WIDTH = 80, PRECISIONS = 3, LEVELS = CONFIG_RECOMPUTE_LAYER + 1 };

/* In the order of the columns. */
static const enum config_precision precisions[PRECISIONS] = {
    CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16, CONFIG_PRECISION_FP16};

struct memory_question memory_question(const struct config *config, struct backend *be,
                                       double gib) {
    struct memory_question question = {config, be, 0, gib < 0};
    if (gib < 0) question.memory = backend_available(be);
    else question.memory = gib * 0x1p30 < 0x1p62 ? (size_t)(gib * 0x1p30) : (size_t)1 << 62;
    return question;
}

/* ---- figures */

/* Bytes are printed in one unit all through a table. */
struct unit {
    const char *name;
    double bytes;
    int digits;
};

static struct unit unit_for(size_t largest) {
    if (largest < (size_t)10 << 30) return (struct unit){"MiB", 0x1p20, 1};
    return (struct unit){"GiB", 0x1p30, 2};
}

static void bytes_cell(struct table *table, const struct unit *unit, size_t bytes) {
    table_cell(table, "%.*f", unit->digits, (double)bytes / unit->bytes);
}

/* An amount in a sentence. */
static const char *bytes_text(char text[32], size_t bytes) {
    struct unit unit = unit_for(bytes);
    snprintf(text, 32, "%.*f %s", unit.digits, (double)bytes / unit.bytes, unit.name);
    return text;
}

static const char *memory_text(char text[64], const struct memory_question *question) {
    char amount[32];
    snprintf(text, 64, "%s%s", bytes_text(amount, question->memory),
             question->free ? " (free here)" : "");
    return text;
}

static bool can_compute(const struct backend *be, enum config_precision precision) {
    return precision != CONFIG_PRECISION_BF16 || be->device.computes[DTYPE_BF16];
}

static bool in_16_bit(const struct config *config) {
    return config->autocast.enabled && config->precision != CONFIG_PRECISION_FP32;
}

/* The name, with a star if it is what the run is in. */
static const char *precision_text(char text[16], enum config_precision precision,
                                  const struct config *config) {
    snprintf(text, 16, "%s%s", config_precision_name(precision),
             precision == config->precision ? " *" : "");
    return text;
}

/* ---- the parts of a plan in each precision */

static int print_parts(FILE *out, const struct memory_question *question, struct error *error) {
    static const struct {
        const char *name;
        size_t offset;
    } parts[] = {
        {"fp32 weights", offsetof(struct memory_plan, master)},
        {"16-bit copy", offsetof(struct memory_plan, lower)},
        {"gradients", offsetof(struct memory_plan, gradients)},
        {"moments", offsetof(struct memory_plan, moments)},
        {"activations", offsetof(struct memory_plan, activations)},
        {"batches", offsetof(struct memory_plan, batches)},
        {"workspace", offsetof(struct memory_plan, workspace)},
        {"library", offsetof(struct memory_plan, library)},
        {"total", offsetof(struct memory_plan, total)},
    };
    struct config config = *question->config;
    struct memory_plan plans[PRECISIONS] = {{0}};
    struct table table = {0};
    size_t largest = 0;
    for (int i = 0; i < PRECISIONS; i++) {
        config.precision = precisions[i];
        if (!can_compute(question->be, precisions[i])) continue;
        if (memory_plan_of(&plans[i], &config, question->be, error)) return -1;
        if (plans[i].total > largest) largest = plans[i].total;
    }
    struct unit unit = unit_for(largest);
    table_column(&table, unit.name, TABLE_LEFT);
    for (int i = 0; i < PRECISIONS; i++) {
        char name[16];
        table_column(&table, precision_text(name, precisions[i], question->config), TABLE_RIGHT);
    }
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) {
        table_cell(&table, "%s", parts[part].name);
        for (int i = 0; i < PRECISIONS; i++) {
            const char *plan = (const char *)&plans[i];
            if (!can_compute(question->be, precisions[i])) table_cell(&table, "-");
            else bytes_cell(&table, &unit, *(const size_t *)(plan + parts[part].offset));
        }
    }
    fprintf(out, "\nMemory of this run in each precision (* as configured)\n\n");
    table_print_text(out, &table, WIDTH);
    table_free(&table);
    return 0;
}

/* ---- what each option saves */

static void option_text(char text[64], enum memory_option option, const struct config *to) {
    static const char *const names[MEMORY_OPTIONS] = {
        [MEMORY_RECOMPUTE_GELU] = "train.recompute=gelu",
        [MEMORY_RECOMPUTE_LAYER] = "train.recompute=layer",
        [MEMORY_GRADIENTS] = "gradients.dtype=lower",
        [MEMORY_RESIDUAL] = "autocast.residual=lower",
    };
    if (names[option]) snprintf(text, 64, "%s", names[option]);
    else snprintf(text, 64, "train.micro_batch_size=%" PRId64, to->train.micro_batch_size);
}

static void cost_text(char text[64], enum memory_option option, const struct config *from,
                      const struct config *to, const struct backend *be) {
    const char *name = config_precision_name(to->precision);
    double more = memory_recomputed_part(to, be) - memory_recomputed_part(from, be);
    if (option == MEMORY_MICRO_BATCH)
        snprintf(text, 64, "sums reordered; grad_accum_steps=%" PRId64, to->train.grad_accum_steps);
    else if (option == MEMORY_GRADIENTS) snprintf(text, 64, "gradients rounded to %s", name);
    else if (option == MEMORY_RESIDUAL) snprintf(text, 64, "residual stream in %s", name);
    else if (more > 0) snprintf(text, 64, "same bits; %.1f %% more arithmetic", 100 * more);
    else snprintf(text, 64, "same bits; GELU once more");
}

static int print_savings(FILE *out, const struct memory_question *question, struct error *error) {
    const struct config *config = question->config;
    struct memory_plan own, plan;
    struct table table = {0};
    if (memory_plan_of(&own, config, question->be, error)) return -1;
    struct unit unit = unit_for(own.total);
    char heading[32];
    snprintf(heading, sizeof heading, "saves %s", unit.name);
    table_column(&table, "option", TABLE_LEFT);
    table_column(&table, heading, TABLE_RIGHT);
    table_column(&table, "%", TABLE_RIGHT);
    table_column(&table, "costs", TABLE_LEFT);
    int failed = 0;
    for (enum memory_option option = 0; !failed && option < MEMORY_OPTIONS; option++) {
        struct config other = *config;
        char text[64];
        if (!memory_apply(&other, option, in_16_bit(config))) continue;
        failed = memory_plan_of(&plan, &other, question->be, error);
        double saved = (double)own.total - (double)plan.total;
        option_text(text, option, &other);
        table_cell(&table, "%s", text);
        table_cell(&table, "%.*f", unit.digits, saved / unit.bytes);
        table_cell(&table, "%.1f", 100 * saved / (double)own.total);
        cost_text(text, option, config, &other, question->be);
        table_cell(&table, "%s", text);
    }
    if (!failed && table_rows(&table) > 0) {
        fprintf(out, "\nWhat saves memory in %s, each by itself\n\n",
                config_precision_name(config->precision));
        table_print_text(out, &table, WIDTH);
    }
    table_free(&table);
    return failed;
}

/* ---- the largest micro-batches */

/* Signs in a table of micro-batches that need an explanation. */
struct signs {
    bool state, limit;
};

static int batch_cell(struct table *table, struct signs *signs,
                      const struct memory_question *question, const struct config *config,
                      struct error *error) {
    int64_t batch = MEMORY_NO_STATE;
    bool possible = can_compute(question->be, config->precision);
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

static void explain(FILE *out, const struct signs *signs) {
    if (signs->state) fprintf(out, "-: weights, gradients and moments alone are more\n");
    if (signs->limit)
        fprintf(out, "+: there may be room for more, but a config can ask for no more\n");
}

static int print_batches(FILE *out, const struct memory_question *question, struct error *error) {
    static const char *const headings[LEVELS] = {"recompute none", "gelu", "layer"};
    struct table table = {0};
    char text[64];
    struct signs signs = {false, false};
    int failed = 0;
    table_column(&table, "", TABLE_LEFT);
    for (int level = 0; level < LEVELS; level++) table_column(&table, headings[level], TABLE_RIGHT);
    for (int i = 0; !failed && i < PRECISIONS; i++) {
        struct config config = *question->config;
        config.precision = precisions[i];
        table_cell(&table, "%s", precision_text(text, precisions[i], question->config));
        for (int level = 0; !failed && level < LEVELS; level++) {
            config.train.recompute = (enum config_recompute)level;
            failed = batch_cell(&table, &signs, question, &config, error);
        }
    }
    if (!failed) {
        fprintf(out, "\nLargest train.micro_batch_size in %s\n\n", memory_text(text, question));
        table_print_text(out, &table, WIDTH);
        explain(out, &signs);
    }
    table_free(&table);
    return failed;
}

/* ---- whether it fits */

static int print_advice(FILE *out, const struct memory_question *question, struct error *error) {
    static const char *const effects[] = {
        [MEMORY_SAME_BITS] = "with the same bits",
        [MEMORY_OTHER_ORDER] = "with the same steps but for the order of sums",
        [MEMORY_LESS_EXACT] = "but is less exact",
    };
    struct memory_advice advice;
    struct memory_plan plan;
    char needed[32], memory[64];
    if (memory_plan_of(&plan, question->config, question->be, error)) return -1;
    bytes_text(needed, plan.total);
    memory_text(memory, question);
    if (plan.total <= question->memory) {
        fprintf(out, "\nThis run fits: it takes %s of %s.\n", needed, memory);
        return 0;
    }
    int status = memory_advise(&advice, question->config, question->be, question->memory, error);
    if (status == RESULT_FAILED) return -1;
    fprintf(out, "\nThis run does not fit: it takes %s, and there are %s.\n", needed, memory);
    if (status == RESULT_NONE) {
        const struct memory_plan *least = &advice.plan;
        size_t state = least->master + least->lower + least->gradients + least->moments;
        fprintf(out, "No option makes it fit: the least is %s, of which weights, gradients\n",
                bytes_text(needed, least->total));
        fprintf(out, "and moments are %s. Choose a smaller model, or lower data.seq_len.\n",
                bytes_text(needed, state));
        return 0;
    }
    fprintf(out, "With these it takes %s, %s:\n\n", bytes_text(needed, advice.plan.total),
            effects[advice.bits]);
    for (const char *flag = advice.flags; *flag;) { /* one a line, each line to be continued */
        const char *next = strstr(flag, " --set");
        int length = next ? (int)(next - flag) : (int)strlen(flag);
        fprintf(out, "  %.*s%s\n", length, flag, next ? " \\" : "");
        flag += length + (next ? 1 : 0);
    }
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
    if (print_parts(out, &other, error) || print_savings(out, &other, error) ||
        print_batches(out, &other, error))
        return -1;
    return print_advice(out, question, error);
}

/* ---- models of well-known sizes */

enum { VARIANTS = 4 };

struct variant {
    const char *heading;
    enum config_precision precision;
    enum config_recompute recompute;
    enum config_dtype gradients;
};

static struct config variant_of(const struct variant *variant, int size,
                                const struct config *config) {
    struct config other;
    memory_size_config(&other, &memory_sizes[size], config);
    other.precision = variant->precision;
    other.train.recompute = variant->recompute;
    other.gradients.dtype = variant->gradients;
    return other;
}

static int print_totals(FILE *out, const struct memory_question *question, struct error *error) {
    static const struct variant variants[VARIANTS] = {
        {"fp32", CONFIG_PRECISION_FP32, CONFIG_RECOMPUTE_NONE, CONFIG_DTYPE_FLOAT32},
        {"bf16", CONFIG_PRECISION_BF16, CONFIG_RECOMPUTE_NONE, CONFIG_DTYPE_FLOAT32},
        {"fp16", CONFIG_PRECISION_FP16, CONFIG_RECOMPUTE_NONE, CONFIG_DTYPE_FLOAT32},
        {"bf16 least", CONFIG_PRECISION_BF16, CONFIG_RECOMPUTE_LAYER, CONFIG_DTYPE_LOWER},
    };
    const struct unit gib = {"GiB", 0x1p30, 2};
    struct table table = {0};
    int failed = 0;
    table_column(&table, "model", TABLE_LEFT);
    table_column(&table, "parameters", TABLE_RIGHT);
    for (int i = 0; i < VARIANTS; i++) table_column(&table, variants[i].heading, TABLE_RIGHT);
    for (int size = 0; size < MEMORY_SIZES; size++) {
        for (int i = 0; !failed && i < VARIANTS; i++) {
            struct config config = variant_of(&variants[i], size, question->config);
            struct memory_plan plan;
            if (i == 0) {
                double count = (double)config_parameter_count(&config);
                table_cell(&table, "%s", memory_sizes[size].name);
                table_cell(&table, count < 1e9 ? "%.0f M" : "%.1f G",
                           count / (count < 1e9 ? 1e6 : 1e9));
            }
            if (!can_compute(question->be, config.precision)) {
                table_cell(&table, "-");
                continue;
            }
            failed = memory_plan_of(&plan, &config, question->be, error);
            bytes_cell(&table, &gib, plan.total);
        }
    }
    if (!failed) {
        fprintf(out,
                "\nModels from 124M to 70B: GiB for micro-batches of one sequence of %" PRId64
                " tokens\n",
                question->config->data.seq_len);
        if (question->config->model.vocab_size != MEMORY_SIZES_VOCABULARY)
            fprintf(out, "(with GPT-2's vocabulary of %d; this run's has %" PRId64 ")\n",
                    MEMORY_SIZES_VOCABULARY, question->config->model.vocab_size);
        fputc('\n', out);
        table_print_text(out, &table, WIDTH);
        fprintf(out, "bf16 least: with train.recompute=layer and gradients.dtype=lower\n");
    }
    table_free(&table);
    return failed;
}

static int print_size_batches(FILE *out, const struct memory_question *question,
                              struct error *error) {
    static const struct variant variants[VARIANTS] = {
        {"fp32", CONFIG_PRECISION_FP32, CONFIG_RECOMPUTE_NONE, CONFIG_DTYPE_FLOAT32},
        {"fp32 layer", CONFIG_PRECISION_FP32, CONFIG_RECOMPUTE_LAYER, CONFIG_DTYPE_FLOAT32},
        {"bf16", CONFIG_PRECISION_BF16, CONFIG_RECOMPUTE_NONE, CONFIG_DTYPE_FLOAT32},
        {"bf16 layer", CONFIG_PRECISION_BF16, CONFIG_RECOMPUTE_LAYER, CONFIG_DTYPE_FLOAT32},
    };
    struct table table = {0};
    char text[64];
    struct signs signs = {false, false};
    int failed = 0;
    table_column(&table, "model", TABLE_LEFT);
    for (int i = 0; i < VARIANTS; i++) table_column(&table, variants[i].heading, TABLE_RIGHT);
    for (int size = 0; !failed && size < MEMORY_SIZES; size++) {
        table_cell(&table, "%s", memory_sizes[size].name);
        for (int i = 0; !failed && i < VARIANTS; i++) {
            struct config config = variant_of(&variants[i], size, question->config);
            failed = batch_cell(&table, &signs, question, &config, error);
        }
    }
    if (!failed) {
        fprintf(out,
                "\nTheir largest micro-batch in %s, fp32 and bf16,\n"
                "without and with train.recompute=layer\n\n",
                memory_text(text, question));
        table_print_text(out, &table, WIDTH);
        explain(out, &signs);
    }
    table_free(&table);
    return failed;
}

int memory_print_sizes(FILE *out, const struct memory_question *question, struct error *error) {
    if (print_totals(out, question, error)) return -1;
    return print_size_batches(out, question, error);
}
