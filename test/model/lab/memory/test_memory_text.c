/* What a dry run prints about memory: every number against the plan it stands for. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include "model/lab/memory/memory_text.h"
#include "test/match.h"

enum { GIB_30 = 30 };

static void open_run(struct rig *rig, enum config_precision precision) {
    rig_config(&rig->config, precision);
    rig->config.model.n_embd = 128;
    rig->config.model.n_layer = 3;
    rig->config.train.micro_batch_size = 8;
    rig_open_backend(rig, test_device(), 2);
}

static size_t total_of(struct rig *rig, const struct config *config) {
    struct memory_plan plan;
    cr_assert_eq(memory_plan_of(&plan, config, &rig->be, &rig->error), 0, "%s", rig->error.text);
    return plan.total;
}

/* What is printed, to be freed; gib < 0: about what is free. */
static char *print(struct rig *rig, double gib, bool sizes) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    struct memory_question question = memory_question(&rig->config, &rig->be, gib);
    int failed = sizes ? memory_print_sizes(out, &question, &rig->error)
                       : memory_print_run(out, &question, &rig->error);
    fclose(out);
    cr_assert_eq(failed, 0, "%s", rig->error.text);
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        cr_expect_leq(length, 80, "%.*s", (int)length, line);
        cr_expect(length == 0 || line[length - 1] != ' ', "%.*s|", (int)length, line);
        line += length + (line[length] == '\n');
    }
    return text;
}

/* The line that begins with label and two spaces, from where it is said on. */
static const char *row(const char *from, const char *label) {
    char begin[64];
    snprintf(begin, sizeof begin, "\n%s  ", label);
    const char *found = strstr(from, begin);
    cr_assert_not_null(found, "no row \"%s\" in: %s", label, from);
    return found + 1 + strlen(label);
}

/* The words of the rest of a row, counted from 0. */
static const char *cell(const char *row, int index) {
    static char texts[4][64];
    static int turn;
    char *text = texts[turn++ % 4];
    for (;; index--) {
        row += strspn(row, " ");
        size_t length = strcspn(row, " \n");
        cr_assert_gt(length, 0, "the row is too short");
        if (index == 0) {
            snprintf(text, 64, "%.*s", (int)length, row);
            return text;
        }
        row += length;
    }
}

static const char *figure(double value, int digits) {
    static char texts[4][32];
    static int turn;
    char *text = texts[turn++ % 4];
    snprintf(text, 32, "%.*f", digits, value);
    return text;
}

static const char *mib(size_t bytes) {
    return figure((double)bytes / 0x1p20, 1);
}

static const char *gib(size_t bytes) {
    return figure((double)bytes / 0x1p30, 2);
}

Test(memory_text, parts_in_each_precision) {
    for (size_t own = 0; own < COUNT(rig_precisions); own++) {
        struct rig rig = {0};
        open_run(&rig, rig_precisions[own]);
        rig.config.train.recompute = CONFIG_RECOMPUTE_GELU; /* all as the run has it */
        char *text = print(&rig, GIB_30, false);
        const char *head = row(text, "MiB");
        for (int p = 0, word = 0; p < 3; p++) {
            struct config config = rig.config;
            struct memory_plan plan;
            config.precision = rig_precisions[p];
            cr_assert_eq(memory_plan_of(&plan, &config, &rig.be, &rig.error), 0);
            cr_expect_str_eq(cell(row(text, "fp32 weights"), p), mib(plan.master));
            cr_expect_str_eq(cell(row(text, "16-bit copy"), p), mib(plan.lower));
            cr_expect_str_eq(cell(row(text, "gradients"), p), mib(plan.gradients));
            cr_expect_str_eq(cell(row(text, "moments"), p), mib(plan.moments));
            cr_expect_str_eq(cell(row(text, "activations"), p), mib(plan.activations));
            cr_expect_str_eq(cell(row(text, "batches"), p), mib(plan.batches));
            cr_expect_str_eq(cell(row(text, "workspace"), p), mib(plan.workspace));
            cr_expect_str_eq(cell(row(text, "total"), p), mib(plan.total));
            cr_expect_str_eq(cell(head, word++), config_precision_name(rig_precisions[p]));
            if (p == (int)own) cr_expect_str_eq(cell(head, word++), "*");
        }
        free(text);
        backend_close(&rig.be);
    }
}

static void expect_saving(struct rig *rig, const char *text, const char *label,
                          const struct config *other, const char *cost) {
    double own = (double)total_of(rig, &rig->config), saved = own - (double)total_of(rig, other);
    const char *line = row(text, label);
    cr_expect_gt(saved, 0, "%s", label);
    cr_expect_str_eq(cell(line, 0), figure(saved / 0x1p20, 1), "%s", label);
    cr_expect_str_eq(cell(line, 1), figure(100 * saved / own, 1), "%s", label);
    const char *found = strstr(line, cost), *end = strchr(line, '\n');
    cr_expect(found && found < end, "%s: no \"%s\" in %.*s", label, cost, (int)(end - line), line);
}

Test(memory_text, what_options_save) {
    struct rig rig = {0};
    char cost[64];
    open_run(&rig, CONFIG_PRECISION_FP16);
    rig.be.device.gelu_of_stored = true;
    char *text = print(&rig, GIB_30, false);
    struct config other = rig.config;
    other.train.recompute = CONFIG_RECOMPUTE_GELU;
    expect_saving(&rig, text, "train.recompute=gelu", &other, "same bits; GELU once more");
    other.train.recompute = CONFIG_RECOMPUTE_LAYER;
    double part = memory_recomputed_part(&other, &rig.be);
    cr_expect_gt(part, 0.05);
    snprintf(cost, sizeof cost, "same bits; %.1f %% more arithmetic", 100 * part);
    expect_saving(&rig, text, "train.recompute=layer", &other, cost);
    other = rig.config;
    other.train.micro_batch_size = 4;
    other.train.grad_accum_steps = 4;
    expect_saving(&rig, text, "train.micro_batch_size=4", &other,
                  "sums reordered; grad_accum_steps=4");
    other = rig.config;
    other.gradients.dtype = CONFIG_DTYPE_LOWER;
    expect_saving(&rig, text, "gradients.dtype=lower", &other, "gradients rounded to fp16");
    other = rig.config;
    other.autocast.residual = CONFIG_DTYPE_LOWER;
    expect_saving(&rig, text, "autocast.residual=lower", &other, "residual stream in fp16");
    free(text);
    rig.be.device.gelu_of_stored = false; /* as on a GPU: the product before it is made once more */
    other = rig.config;
    other.train.recompute = CONFIG_RECOMPUTE_GELU;
    snprintf(cost, sizeof cost, "same bits; %.1f %% more",
             100 * memory_recomputed_part(&other, &rig.be));
    text = print(&rig, GIB_30, false);
    expect_saving(&rig, text, "train.recompute=gelu", &other, cost);
    free(text);
    backend_close(&rig.be);
}

/* Options that are in force, or cannot be, are not offered; what is added to one counts alone. */
Test(memory_text, only_options_that_there_are) {
    struct rig rig = {0};
    char cost[64];
    open_run(&rig, CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = 1;
    rig.config.train.recompute = CONFIG_RECOMPUTE_GELU;
    rig.be.device.gelu_of_stored = false;
    char *text = print(&rig, GIB_30, false);
    struct config layer = rig.config;
    layer.train.recompute = CONFIG_RECOMPUTE_LAYER;
    snprintf(cost, sizeof cost, "; %.1f %% more",
             100 * (memory_recomputed_part(&layer, &rig.be) -
                    memory_recomputed_part(&rig.config, &rig.be)));
    expect_saving(&rig, text, "train.recompute=layer", &layer, cost);
    cr_expect_null(strstr(text, "train.recompute=gelu"));
    cr_expect_null(strstr(text, "train.micro_batch_size="));
    cr_expect_null(strstr(text, "lower"));
    free(text);
    rig.config.train.recompute = CONFIG_RECOMPUTE_LAYER;
    text = print(&rig, GIB_30, false);
    cr_expect_null(strstr(text, "saves"));
    free(text);
    backend_close(&rig.be);
}

static const char *batch_text(int64_t batch) {
    return batch == MEMORY_NO_STATE ? "-" : figure((double)batch, 0);
}

static const char *largest(struct rig *rig, const struct config *config, double gibs) {
    int64_t batch;
    size_t memory = memory_question(config, &rig->be, gibs).memory;
    cr_assert_eq(memory_largest_batch(&batch, config, &rig->be, memory, &rig->error), 0);
    return batch_text(batch);
}

Test(memory_text, largest_micro_batches) {
    static const double memories[] = {0.25, 0.03125, 0.0078125}; /* many, a few, none in 16 bit */
    for (size_t m = 0; m < COUNT(memories); m++) {
        struct rig rig = {0};
        open_run(&rig, CONFIG_PRECISION_BF16);
        char *text = print(&rig, memories[m], false);
        const char *table = strstr(text, "\nLargest train.micro_batch_size in ");
        cr_assert_not_null(table);
        int dashes = 0;
        for (int p = 0; p < 3; p++)
            for (int level = 0; level < 3; level++) {
                struct config config = rig.config;
                config.precision = rig_precisions[p];
                config.train.recompute = (enum config_recompute)level;
                const char *line = row(table, p == 1 ? "bf16 *" : p == 0 ? "fp32  " : "fp16  ");
                cr_expect_str_eq(cell(line, level), largest(&rig, &config, memories[m]));
                cr_expect_null(strstr(table, "+"));
                dashes += cell(line, level)[0] == '-';
            }
        cr_expect_eq(dashes > 0, strstr(table, "-: weights, gradients") != NULL);
        cr_expect_eq(m == 2, dashes > 0);
        free(text);
        backend_close(&rig.be);
    }
}

/* Where a config's limits end the search, it is said that there would be room. */
Test(memory_text, limits_of_a_config_are_marked) {
    struct rig rig = {0};
    open_run(&rig, CONFIG_PRECISION_FP32);
    char *text = print(&rig, 1e30, false);
    expect_match(text, "\nfp32 \\* +65536\\+ +65536\\+ +65536\\+\n");
    expect_match(text,
                 "\n\\+: there may be room for more, [^\n]*\n\nThis run fits: it takes [0-9.]+ MiB "
                 "of [0-9.]+ GiB\\.\n$");
    free(text);
    backend_close(&rig.be);
}

Test(memory_text, fits_or_says_what_to_change) {
    struct rig rig = {0};
    char pattern[256];
    open_run(&rig, CONFIG_PRECISION_BF16);
    size_t own = total_of(&rig, &rig.config);
    char *text = print(&rig, (double)own / 0x1p30, false);
    snprintf(pattern, sizeof pattern, "\nThis run fits: it takes %s MiB of %s MiB\\.\n$", mib(own),
             mib(own));
    expect_match(text, pattern);
    free(text);
    struct config layer = rig.config;
    layer.train.recompute = CONFIG_RECOMPUTE_LAYER;
    size_t less = total_of(&rig, &layer);
    text = print(&rig, (double)less / 0x1p30, false);
    snprintf(pattern, sizeof pattern,
             "\nThis run does not fit: it takes %s MiB, and there are %s MiB\\.\n"
             "With these it takes %s MiB, with the same bits:\n\n"
             "  --set train.recompute=layer\n$",
             mib(own), mib(less), mib(less));
    expect_match(text, pattern);
    free(text);
    layer.train.micro_batch_size = 1;
    layer.train.grad_accum_steps = 16;
    less = total_of(&rig, &layer);
    text = print(&rig, (double)less / 0x1p30, false);
    expect_match(text,
                 "\nWith these it takes [0-9.]+ MiB, with the same steps but for the order of "
                 "sums:\n\n"
                 "  --set train.recompute=layer \\\\\n"
                 "  --set train.micro_batch_size=1 \\\\\n"
                 "  --set train.grad_accum_steps=16\n$");
    free(text);
    text = print(&rig, (double)(less - 1) / 0x1p30, false);
    expect_match(text, "\nWith these it takes [0-9.]+ MiB, but is less exact:\n\n"
                       "  (.*\n)*  --set gradients.dtype=lower\n$");
    free(text);
    struct memory_advice advice;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, 1, &rig.error), RESULT_NONE);
    const struct memory_plan *least = &advice.plan;
    cr_expect_leq(least->total, less);
    text = print(&rig, 0, false);
    snprintf(pattern, sizeof pattern,
             "the least is %s MiB, of which weights, gradients\nand moments are %s MiB\\.",
             mib(least->total),
             mib(least->master + least->lower + least->gradients + least->moments));
    expect_match(text, "\nThis run does not fit: [^\n]* and there are 0.0 MiB\\.\nNo option ");
    expect_match(text, pattern);
    free(text);
    backend_close(&rig.be);
}

/* Without autocast the precision is a word without a meaning. */
Test(memory_text, without_autocast_the_run_is_in_fp32) {
    struct rig rig = {0};
    open_run(&rig, CONFIG_PRECISION_BF16);
    rig.config.autocast.enabled = false;
    char *text = print(&rig, 80, false);
    expect_match(text, "autocast\\.enabled is false, so this run computes in fp32");
    expect_match(text, "\nMiB +fp32 \\* +bf16 +fp16\n");
    expect_match(text, "What saves memory in fp32");
    cr_expect_null(strstr(text, "gradients.dtype"), "%s", text);
    free(text);
    backend_close(&rig.be);
}

/* Without a number the question is about what is free. */
Test(memory_text, asks_the_device) {
    struct rig rig = {0};
    open_run(&rig, CONFIG_PRECISION_FP32);
    struct memory_question question = memory_question(&rig.config, &rig.be, -1);
    cr_expect(question.free);
    cr_expect_gt(question.memory, (size_t)1 << 20);
    cr_expect_lt(fabs((double)question.memory / (double)backend_available(&rig.be) - 1), 0.5);
    question = memory_question(&rig.config, &rig.be, 2.5);
    cr_expect_not(question.free);
    cr_expect_eq(question.memory, (size_t)5 << 29);
    char *text = print(&rig, -1, false);
    cr_expect_not_null(strstr(text, "GiB (free here)"));
    free(text);
    text = print(&rig, 2.5, false);
    cr_expect_null(strstr(text, "free here"));
    cr_expect_not_null(strstr(text, "in 2560.0 MiB\n"));
    free(text);
    backend_close(&rig.be);
}

/* A device that cannot compute in bf16 has no numbers for it. */
Test(memory_text, without_bf16) {
    struct rig rig = {0};
    open_run(&rig, CONFIG_PRECISION_FP16);
    rig.be.device.computes[DTYPE_BF16] = false;
    char *text = print(&rig, GIB_30, false);
    cr_expect_str_eq(cell(row(text, "total"), 1), "-");
    expect_match(text, "\nbf16 +- +- +-\n");
    cr_expect_null(strstr(text, "-: weights"));
    free(text);
    text = print(&rig, 30, true);
    expect_match(text, "\ngpt2 +124 M +[0-9.]+ +- +[0-9.]+ +-\n");
    free(text);
    backend_close(&rig.be);
}

/* ---- sizes */

static struct config size_of(const struct rig *rig, int size, enum config_precision precision,
                             enum config_recompute recompute, enum config_dtype gradients) {
    struct config config;
    memory_size_config(&config, &memory_sizes[size], &rig->config);
    config.precision = precision;
    config.train.recompute = recompute;
    config.gradients.dtype = gradients;
    return config;
}

Test(memory_text, sizes) {
    const double memory = 300;
    struct rig rig = {0};
    open_run(&rig, CONFIG_PRECISION_FP32);
    rig.config.data.seq_len = rig.config.model.n_positions = 1024;
    rig.config.train.recompute = CONFIG_RECOMPUTE_LAYER; /* sizes have options of their own */
    rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
    char *text = print(&rig, memory, true);
    const char *batches = strstr(text, "\nTheir largest micro-batch in 300.00 GiB");
    cr_assert_not_null(batches);
    cr_expect_not_null(strstr(text, "one sequence of 1024 tokens"));
    cr_expect_not_null(strstr(text, "GPT-2's vocabulary of 50257; this run's has 61"));
    int numbers = 0, dashes = 0;
    for (int size = 0; size < MEMORY_SIZES; size++)
        for (int column = 0; column < 4; column++) {
            static const enum config_precision totals[] = {
                CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16, CONFIG_PRECISION_FP16,
                CONFIG_PRECISION_BF16};
            const char *name = memory_sizes[size].name;
            bool least = column == 3, layer = column % 2;
            struct config config = size_of(&rig, size, totals[column],
                                           least ? CONFIG_RECOMPUTE_LAYER : CONFIG_RECOMPUTE_NONE,
                                           least ? CONFIG_DTYPE_LOWER : CONFIG_DTYPE_FLOAT32);
            cr_expect_str_eq(cell(row(text, name), 2 + column), gib(total_of(&rig, &config)),
                             "%s, column %d", name, column);
            config = size_of(&rig, size, totals[column / 2],
                             layer ? CONFIG_RECOMPUTE_LAYER : CONFIG_RECOMPUTE_NONE,
                             CONFIG_DTYPE_FLOAT32);
            const char *given = cell(row(batches, name), column);
            cr_expect_str_eq(given, largest(&rig, &config, memory), "%s, column %d", name, column);
            numbers += given[0] != '-';
            dashes += given[0] == '-';
        }
    cr_expect_gt(numbers, 20);
    cr_expect_gt(dashes, 3);
    free(text);
    rig.config.model.vocab_size = 50257;
    text = print(&rig, memory, true);
    cr_expect_null(strstr(text, "vocabulary"));
    free(text);
    backend_close(&rig.be);
}

/* Bytes in GiB where MiB would be long numbers, and nothing is wider than a terminal. */
Test(memory_text, large_runs_stay_within_the_width) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.n_layer = 96;
    rig.config.model.n_head = 96;
    rig.config.model.n_embd = 12288;
    rig.config.model.vocab_size = 50257;
    rig.config.data.seq_len = rig.config.model.n_positions = 2048;
    rig.config.train.micro_batch_size = 6144;
    rig.config.train.grad_accum_steps = 10000;
    rig_open_backend(&rig, test_device(), 2);
    char *text = print(&rig, 80, false);
    struct memory_plan plan;
    cr_assert_eq(memory_plan_of(&plan, &rig.config, &rig.be, &rig.error), 0);
    cr_expect_str_eq(cell(row(text, "moments"), 1), gib(plan.moments));
    cr_expect_str_eq(cell(row(text, "total"), 1), gib(plan.total));
    expect_match(text, "\nbf16 \\* +- +- +-\n");
    free(text);
    backend_close(&rig.be);
}
