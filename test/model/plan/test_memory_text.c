/* Output of a dry run about memory: every number is compared with its plan. */
#include "data/util/printed.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/io/config_file.h"
#include "test/match.h"
#include "test/model/plan/memory_fixture.h"

#include "model/plan/memory_costs.h"
#include "model/plan/memory_text.h"

TestSuite(memory_text, .fini = close_rig);

static void open_run(enum config_precision precision) {
    close_rig();
    rig_config(&rig.config, precision);
    rig.config.model.n_embd = 128;
    rig.config.model.n_layer = 3;
    rig.config.model.vocab_size = VOCABULARY;
    rig.config.train.micro_batch_size = 8;
    rig_open_backend(&rig, test_device(), 2);
}

typedef int printer(FILE *out, const struct memory_request *request, struct error *error);

/* Returns the printed text, valid until the next call. gib < 0: free memory. */
static char *print(printer *function, double gib, int status) {
    static struct printed printed;
    struct memory_request request = memory_request(&rig.config, &rig.be, gib);
    free(printed.text);
    cr_assert_eq(printed_open(&printed), 0);
    cr_assert_eq(function(printed.out, &request, &rig.error), status, "%s", rig.error.text);
    cr_assert_eq(printed_close(&printed), 0);
    for (const char *line = printed.text; *line;) {
        size_t length = strcspn(line, "\n");
        cr_expect_leq(length, 80, "%.*s", (int)length, line);
        cr_expect(length == 0 || line[length - 1] != ' ', "%.*s|", (int)length, line);
        line += length + (line[length] == '\n');
    }
    return printed.text;
}

/* Returns text, valid for the next 31 calls. */
__attribute__((format(printf, 1, 2))) static char *text_of(const char *format, ...) {
    static char texts[32][64];
    static int turn;
    char *text = texts[turn++ % 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof texts[0], format, arguments);
    va_end(arguments);
    return text;
}

static const char *mib(size_t bytes) {
    return text_of("%.1f", (double)bytes / 0x1p20);
}

static const char *gib(size_t bytes) {
    return text_of("%.2f", (double)bytes / 0x1p30);
}

static const char *largest(const struct config *config, double gibs) {
    int64_t batch;
    size_t memory = memory_request(config, &rig.be, gibs).memory;
    cr_assert_eq(memory_largest_batch(&batch, config, &rig.be, memory, &rig.error), 0);
    return batch == MEMORY_NO_STATE ? "-" : text_of("%d", (int)batch);
}

/* Expects a line after `from` that begins with label and has these cells, up to NULL. */
static void expect_row(const char *from, const char *label, const char *const *cells) {
    char begin[64];
    snprintf(begin, sizeof begin, "\n%s  ", label);
    const char *at = strstr(from, begin);
    cr_assert_not_null(at, "no row \"%s\" in: %s", label, from);
    at += strlen(begin);
    for (; *cells; cells++) {
        at += strspn(at, " ");
        cr_expect(strncmp(at, *cells, strlen(*cells)) == 0, "%s: %s, not at: %.60s", label, *cells,
                  at);
        at += strlen(*cells);
    }
    cr_expect_eq(*at, '\n', "%s: %.60s", label, at);
}
#define EXPECT_ROW(from, label, ...) \
    expect_row(from, label, (const char *const[]){__VA_ARGS__, NULL})

Test(memory_text, parts_in_each_precision) {
    for (size_t own = 0; own < COUNT(rig_precisions); own++) {
        open_run(rig_precisions[own]);
        rig.config.train.recompute = RECOMPUTE_GELU; /* the tables use the run's setting */
        rig.config.precision = rig_precisions[own];
        const char *names[4];
        struct memory_plan plans[4];
        char *text = print(memory_print_run, 30, 0);
        for (int p = 0; p < 4; p++) {
            struct config config = rig.config;
            if (p < 3) config.precision = rig_precisions[p];
            else if (!config_precision_has_blocks(config.precision))
                config.precision = CONFIG_PRECISION_FP8;
            plans[p] = plan_of(&config);
            names[p] = text_of("%s%s", config_precision_name(config.precision),
                               config.precision == rig.config.precision ? " *" : "");
        }
        EXPECT_ROW(text, "MiB       ", names[0], names[1], names[2], names[3]);
        for (enum memory_part part = 0; part <= MEMORY_PART_TOTAL; part++) {
            const char *cells[5] = {NULL};
            size_t sum = 0;
            for (int p = 0; p < 4; p++) {
                size_t bytes = memory_part_bytes(&plans[p], part);
                cells[p] = mib(bytes), sum += bytes;
            }
            if (sum > 0) expect_row(text, memory_part_name(part), cells);
        }
    }
}

/* Expects the row of an option that turns the run into `other`. */
static void expect_saving(const char *text, const char *setting, const struct config *other,
                          const char *cost) {
    double own = (double)total_of(&rig.config), saved = own - (double)total_of(other);
    cr_expect_gt(saved, 0, "%s", setting);
    EXPECT_ROW(text, setting, text_of("%.1f", saved / 0x1p20), text_of("%.1f", 100 * saved / own),
               cost);
}

Test(memory_text, what_options_save) {
    static const struct {
        const char *setting, *second, *cost; /* NULL: arithmetic */
    } rows[] = {
        {"train.recompute=gelu", NULL, "same bits; GELU once more"},
        {"train.recompute=layer", NULL, NULL},
        {"train.micro_batch_size=4", "train.grad_accum_steps=4",
         "different summation order; 4 per step"},
        {"gradients.dtype=lower", NULL, "gradients rounded to 16 bit"},
        {"optimizer.moments=bfloat16", NULL, "moments rounded to bf16"},
        {"optimizer.moments=int8", NULL, "moments in 8-bit codes"},
        {"weights.copy=cast", NULL, "same bits; weights cast each pass"},
        {"autocast.residual=lower", NULL, "residual stream in 16 bit"},
    };
    for (int stored = 0; stored <= 1; stored++) {
        open_run(CONFIG_PRECISION_FP16);
        /* Without it, as on a GPU, recomputing GELU includes the matmul before it. */
        rig.be.device.gelu_of_stored = stored;
        char *text = print(memory_print_run, 30, 0);
        for (size_t i = 0; i < COUNT(rows); i++) {
            struct config other = rig.config;
            char *sets[] = {(char *)rows[i].setting, (char *)rows[i].second};
            cr_assert_eq(config_override(&other, "x", sets, rows[i].second ? 2 : 1, &rig.error), 0,
                         "%s", rig.error.text);
            double part = memory_recomputed_part(&other, &rig.be);
            const char *more = text_of("same bits; %.1f %% more arithmetic", 100 * part);
            bool arithmetic = !rows[i].cost || (i == 0 && !stored);
            cr_expect(!arithmetic || part > 0.02, "%s: %g", rows[i].setting, part);
            expect_saving(text, rows[i].setting, &other, arithmetic ? more : rows[i].cost);
        }
    }
}

/* Options that are already set, impossible or without effect are not listed. */
Test(memory_text, only_options_with_effect) {
    open_run(CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = rig.config.train.grad_accum_steps = 1;
    rig.config.train.recompute = RECOMPUTE_GELU;
    char *text = print(memory_print_run, 30, 0);
    static const char *const absent[] = {"train.recompute=gelu",
                                         "train.micro_batch_size=", "lower"};
    cr_expect_not_null(strstr(text, "\ntrain.recompute=layer "));
    for (size_t i = 0; i < COUNT(absent); i++) cr_expect_null(strstr(text, absent[i]));
    rig.config.train.recompute = RECOMPUTE_LAYER;
    rig.config.optimizer.moments = CONFIG_MOMENTS_INT8;
    rig.config.autocast.enabled = false;
    cr_expect_null(strstr(print(memory_print_run, 30, 0), "saves"));
}

Test(memory_text, largest_micro_batches) {
    static const double memories[] = {0.25, 0.03125, 0.0078125};
    for (size_t m = 0; m < COUNT(memories); m++) {
        open_run(CONFIG_PRECISION_BF16);
        const char *table = strstr(print(memory_print_run, memories[m], 0), "\nLargest train.");
        cr_assert_not_null(table);
        bool dashes = false;
        for (int p = 0; p < 3; p++) {
            const char *cells[4] = {NULL};
            for (int level = 0; level < 3; level++) {
                struct config config = rig.config;
                config.precision = rig_precisions[p];
                config.train.recompute = levels[level];
                cells[level] = largest(&config, memories[m]);
                dashes = dashes || cells[level][0] == '-';
            }
            expect_row(table, p == 1 ? "bf16 *" : p == 0 ? "fp32  " : "fp16  ", cells);
        }
        cr_expect_eq(dashes, strstr(table, "-: weights, gradients") != NULL);
        cr_expect_eq(dashes, m == 2);
    }
    open_run(CONFIG_PRECISION_FP32);
    expect_match(print(memory_print_run, 1e30, 0),
                 "\nfp32 \\* +65536\\+ +65536\\+ +65536\\+\n(.*\n)*\\+: the limit of a config;");
}

/* Applies settings to the run, and expects that they are the advice for the memory they take. */
static void expect_advice(char **sets, int count, const char *effect) {
    char pattern[1024];
    struct config other = rig.config;
    cr_assert_eq(config_override(&other, "x", sets, count, &rig.error), 0, "%s", rig.error.text);
    size_t own = total_of(&rig.config), less = total_of(&other);
    int used = snprintf(pattern, sizeof pattern,
                        "\nThis run does not fit: it takes %s MiB, and there are %s MiB.\n"
                        "With these it takes %s MiB, %s:\n\n",
                        mib(own), mib(less), mib(less), effect);
    for (int i = 0; i < count; i++)
        used += snprintf(pattern + used, sizeof pattern - (size_t)used, "  --set %s%s\n", sets[i],
                         i + 1 < count ? " \\" : "");
    char *text = print(memory_print_run, (double)less / 0x1p30, 0);
    cr_expect_not_null(strstr(text, pattern), "%s in: %s", pattern, text);
    text = print(memory_print_fit, (double)less / 0x1p30, 0);
    cr_expect_eq(strncmp(text, pattern + 1, strlen(pattern + 1)), 0, "%s: %s", pattern, text);
    expect_match(text, "\n\nTheir costs\n\noption +costs\n-+  -+\n");
    for (int i = 0; i < count; i++) {
        bool first = strncmp(sets[i], "train.grad_accum", 16) != 0; /* of its option */
        cr_expect_eq(strstr(text, text_of("\n%s  ", sets[i])) != NULL, first, "%s", sets[i]);
    }
}

Test(memory_text, fits_or_names_options) {
    char *layer[] = {"train.recompute=layer"}, *lower[] = {"gradients.dtype=lower"};
    char *batch[] = {"train.micro_batch_size=1", "train.grad_accum_steps=16"};
    open_run(CONFIG_PRECISION_BF16);
    size_t own = total_of(&rig.config);
    char *text = print(memory_print_fit, (double)own / 0x1p30, 0);
    const char *fits = text_of("This run fits: it takes %s MiB of %s MiB.\n", mib(own), mib(own));
    cr_expect_str_eq(text, fits);
    cr_expect_not_null(strstr(print(memory_print_run, (double)own / 0x1p30, 0), fits));
    expect_advice(layer, 1, "with the same bits");
    rig.config.train.recompute = RECOMPUTE_LAYER;
    rig.config.optimizer.moments = CONFIG_MOMENTS_INT8;
    expect_advice(lower, 1, "but is less exact");
    rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
    expect_advice(batch, 2, "with the same steps but for the order of sums");
    struct memory_advice advice;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, 1, SIZE_MAX, &rig.error),
                 RESULT_NONE);
    text = print(memory_print_fit, 0, RESULT_NONE);
    expect_match(text,
                 "^This run does not fit: [^\n]* and there are 0.0 MiB\\.\nNo option makes it "
                 "fit: [^\n]*\n[^\n]*\nor train adapters: [^\n]*\n$");
    const char *least = text_of("the least is %s MiB", mib(memory_total(&advice.plan)));
    const char *state = text_of("moments are %s MiB", mib(memory_state_bytes(&advice.plan)));
    cr_expect(strstr(text, least) && strstr(text, state), "%s, %s: %s", least, state, text);
}

/* The longest advice fits an error message. */
Test(memory_text, advice_fits_a_message) {
    struct memory_advice advice = {.plan.activations = (size_t)1 << 50, .bits = MEMORY_LESS_EXACT};
    struct printed printed;
    open_run(CONFIG_PRECISION_FP16);
    advice.config = rig.config;
    advice.config.train.grad_accum_steps = 65536;
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++) advice.chosen[i] = true;
    for (int fits = 0; fits <= 1; fits++) {
        if (fits) advice.bits = MEMORY_UNCHANGED;
        cr_assert_eq(printed_open(&printed), 0);
        memory_print_advice(printed.out, &advice, 0);
        cr_assert_eq(printed_close(&printed), 0);
        cr_expect(fits ? printed.size == 0 : printed.size > 250 && printed.size < ERROR_MAX - 200);
        free(printed.text);
    }
}

/* The precision has no effect if autocast is off. */
Test(memory_text, without_autocast_the_run_is_in_fp32) {
    open_run(CONFIG_PRECISION_BF16);
    rig.config.autocast.enabled = false;
    char *text = print(memory_print_run, 80, 0);
    expect_match(text, "autocast\\.enabled is false, so this run computes in fp32");
    expect_match(text, "\nMiB +fp32 \\* +bf16 +fp16 +fp8\n");
    cr_expect_not_null(strstr(text, "optimizer.moments=bfloat16"));
    cr_expect_null(strstr(text, "gradients.dtype"), "%s", text);
    cr_expect_null(strstr(text, "precision="), "%s", text);
}

/* A request without a number uses the free memory. */
Test(memory_text, uses_free_memory) {
    open_run(CONFIG_PRECISION_FP32);
    struct memory_request request = memory_request(&rig.config, &rig.be, -1);
    cr_expect(request.free && request.memory > (size_t)1 << 20);
    cr_expect_lt(fabs((double)request.memory / (double)backend_available(&rig.be) - 1), 0.5);
    request = memory_request(&rig.config, &rig.be, 2.5);
    cr_expect(!request.free && request.memory == (size_t)5 << 29);
    cr_expect_not_null(strstr(print(memory_print_run, -1, 0), "GiB (free here)"));
    cr_expect_not_null(strstr(print(memory_print_run, 2.5, 0), "in 2560.0 MiB\n"));
}

/* A device without bf16 has dashes in that column. */
Test(memory_text, without_bf16) {
    open_run(CONFIG_PRECISION_FP16);
    rig.be.device.computes[DTYPE_BF16] = false;
    char *text = print(memory_print_run, 30, 0);
    expect_match(text, "\ntotal +[0-9.]+ +- +[0-9.]+ +-\n");
    expect_match(text, "\nbf16 +- +- +-\n");
    cr_expect_null(strstr(text, "-: weights"));
    text = print(memory_print_sizes, 30, 0);
    expect_match(text, "\nall +16.0 +- +18.0 +-\n");
    expect_match(text, "\ngpt2 +124 M +[0-9.]+ +- +- +- +- +- +-\n");
    expect_match(text, "\ngpt2 +[0-9]+ +- +- +-\n");
}

/* Large runs are printed in GiB, and no line is wider than 80 columns. */
Test(memory_text, large_runs_stay_within_the_width) {
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.n_layer = rig.config.model.n_head = 96;
    rig.config.model.n_embd = 12288;
    rig.config.model.vocab_size = 50257;
    rig.config.data.seq_len = rig.config.model.n_positions = 2048;
    rig.config.train.micro_batch_size = 6144;
    rig.config.train.grad_accum_steps = 10000;
    rig_open_backend(&rig, test_device(), 2);
    char *text = print(memory_print_run, 80, 0);
    expect_match(text, text_of("\ntotal +[0-9.]+ +%s ", gib(total_of(&rig.config))));
    expect_match(text, "\nbf16 \\* +- +- +-\n");
}

/* ---- models of well-known sizes */

static const struct {
    const char *name, *parameters;
    double millions;
} sizes[] = {{"gpt2", "124 M", 124.4},          {"gpt2-medium", "355 M", 354.8},
             {"gpt2-large", "774 M", 774.0},    {"gpt2-xl", "1.6 G", 1557.6},
             {"llama-3.2-1b", "1.2 G", 1235.8}, {"llama-2-7b", "6.7 G", 6738.4},
             {"llama-3.1-8b", "8.0 G", 8030.3}, {"llama-2-13b", "13.0 G", 13015.9},
             {"llama-2-70b", "69.0 G", 68976.7}};

/* Returns a run of that model in fp32, in bf16, with 16-bit gradients and moments, and with those
 * and recomputing. */
static struct config size_of(size_t size, int column) {
    struct config config;
    char *sets[] = {text_of("model.preset=%s", sizes[size].name),
                    "train.micro_batch_size=1",
                    text_of("data.seq_len=%d", (int)rig.config.data.seq_len),
                    text_of("model.n_positions=%d", (int)rig.config.data.seq_len),
                    column ? "precision=bf16" : "precision=fp32",
                    "gradients.dtype=lower",
                    "optimizer.moments=bfloat16",
                    "train.recompute=layer"};
    config_defaults(&config);
    cr_assert_eq(config_override(&config, "x", sets, column < 2 ? 5 : column + 5, &rig.error), 0,
                 "%s", rig.error.text);
    return config;
}

/* Well-known figures: 16 bytes per parameter in fp32 and bf16, 18 in fp16, 10 with 16 bit. In every
 * size each variant takes less than the one before it, even on a CPU that widens operands. */
Test(memory_text, sizes) {
    const double memory = 300;
    open_run(CONFIG_PRECISION_FP32);
    rig.config.train.recompute = RECOMPUTE_LAYER; /* ignored: sizes have their own options */
    char *text = print(memory_print_sizes, memory, 0);
    cr_expect_not_null(strstr(text, "one sequence of 1024\ntokens"));
    EXPECT_ROW(text, "weights", "4.0", "4.0", "4.0", "4.0");
    EXPECT_ROW(text, "16-bit copy", "0.0", "0.0", "2.0", "0.0");
    EXPECT_ROW(text, "gradients", "4.0", "4.0", "4.0", "2.0");
    EXPECT_ROW(text, "moments", "8.0", "8.0", "8.0", "4.0");
    EXPECT_ROW(text, "all", "16.0", "16.0", "18.0", "10.0");
    const char *table = strstr(text, "\nModels from 124M to 70B");
    const char *batches = strstr(text, "\nTheir largest micro-batch in 300.00 GiB");
    cr_assert(table && batches);
    rig.config.data.seq_len = 1024;
    size_t peak = backend_peak_bytes(&rig.be);
    for (size_t size = 0; size < COUNT(sizes); size++) {
        const char *cells[9] = {sizes[size].parameters}, *counts[5] = {NULL};
        size_t totals[4];
        for (int i = 0; i < 4; i++) {
            struct config config = size_of(size, i);
            totals[i] = total_of(&config);
            counts[i] = largest(&config, memory);
            cells[i ? 2 * i : 1] = gib(totals[i]);
            if (i)
                cells[2 * i + 1] =
                    text_of("%.1f", 100 - 100.0 * (double)totals[i] / (double)totals[0]);
            if (i) cr_expect_lt(totals[i], totals[i - 1], "%s, %d", sizes[size].name, i);
            double count = (double)config_parameter_count(&config) / 1e6;
            cr_expect_lt(fabs(count / sizes[size].millions - 1), size < 4 ? 0.01 : 1e-4, "%g",
                         count);
        }
        expect_row(table, sizes[size].name, cells);
        expect_row(batches, sizes[size].name, counts);
        /* With 16-bit gradients and moments 7 B parameters fit one GPU of 80 GiB. */
        if (strcmp(sizes[size].name, "llama-2-7b") == 0)
            cr_expect(totals[3] < (size_t)80 << 30 && totals[1] > (size_t)80 << 30);
    }
    cr_expect_lt(backend_peak_bytes(&rig.be), peak + ((size_t)256 << 20), "planning takes none");
}
