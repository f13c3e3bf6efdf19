/* Output of a dry run about memory: every number is compared with its plan. */
#include "test/model/plan/table_fixture.h"

#include "model/plan/memory_text.h"

TestSuite(memory_text, .fini = close_rig);

enum { GIB_30 = 30 };

static char *print(double gib) {
    return print_with(memory_print_run, gib);
}

Test(memory_text, parts_in_each_precision) {
    for (size_t own = 0; own < COUNT(rig_precisions); own++) {
        open_run(rig_precisions[own]);
        rig.config.train.recompute =
            CONFIG_RECOMPUTE_GELU; /* the tables use the run's own setting */
        char *text = print(GIB_30);
        const char *head = row(text, "MiB");
        for (int p = 0, word = 0; p < 3; p++) {
            struct config config = rig.config;
            struct memory_plan plan;
            config.precision = rig_precisions[p];
            cr_assert_eq(memory_plan_of(&plan, &config, &rig.be, &rig.error), 0);
            cr_expect_str_eq(cell(row(text, "weights"), p), mib(plan.master));
            cr_expect_str_eq(cell(row(text, "16-bit copy"), p), mib(plan.copies));
            cr_expect_str_eq(cell(row(text, "gradients"), p), mib(plan.gradients));
            cr_expect_str_eq(cell(row(text, "moments"), p), mib(plan.moments));
            cr_expect_str_eq(cell(row(text, "activations"), p), mib(plan.activations));
            cr_expect_str_eq(cell(row(text, "batches"), p), mib(plan.batches));
            cr_expect_str_eq(cell(row(text, "workspace"), p), mib(plan.workspace));
            cr_expect_str_eq(cell(row(text, "total"), p), mib(memory_total(&plan)));
            cr_expect_str_eq(cell(head, word++), config_precision_name(rig_precisions[p]));
            if (p == (int)own) cr_expect_str_eq(cell(head, word++), "*");
        }
    }
}

static void expect_saving(const char *text, const char *label, const struct config *other,
                          const char *cost) {
    double own = (double)total_of(&rig.config), saved = own - (double)total_of(other);
    const char *line = row(text, label);
    cr_expect_gt(saved, 0, "%s", label);
    cr_expect_str_eq(cell(line, 0), figure(saved / 0x1p20, 1), "%s", label);
    cr_expect_str_eq(cell(line, 1), figure(100 * saved / own, 1), "%s", label);
    const char *found = strstr(line, cost), *end = strchr(line, '\n');
    cr_expect(found && found < end, "%s: no \"%s\" in %.*s", label, cost, (int)(end - line), line);
}

Test(memory_text, what_options_save) {
    char cost[64];
    open_run(CONFIG_PRECISION_FP16);
    rig.be.device.gelu_of_stored = true;
    char *text = print(GIB_30);
    struct config other = rig.config;
    other.train.recompute = CONFIG_RECOMPUTE_GELU;
    expect_saving(text, "train.recompute=gelu", &other, "same bits; GELU once more");
    other.train.recompute = CONFIG_RECOMPUTE_LAYER;
    double part = memory_recomputed_part(&other, &rig.be);
    cr_expect_gt(part, 0.05);
    snprintf(cost, sizeof cost, "same bits; %.1f %% more arithmetic", 100 * part);
    expect_saving(text, "train.recompute=layer", &other, cost);
    other = rig.config;
    other.train.micro_batch_size = 4;
    other.train.grad_accum_steps = 4;
    expect_saving(text, "train.micro_batch_size=4", &other,
                  "different summation order; 4 per step");
    other = rig.config;
    other.gradients.dtype = CONFIG_DTYPE_LOWER;
    expect_saving(text, "gradients.dtype=lower", &other, "gradients rounded to 16 bit");
    other = rig.config;
    other.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    expect_saving(text, "optimizer.moments=bfloat16", &other, "moments rounded to bf16");
    other = rig.config;
    other.weights.copy = CONFIG_COPY_CAST;
    expect_saving(text, "weights.copy=cast", &other, "same bits; weights cast each pass");
    other = rig.config;
    other.autocast.residual = CONFIG_DTYPE_LOWER;
    expect_saving(text, "autocast.residual=lower", &other, "residual stream in 16 bit");
    rig.be.device.gelu_of_stored =
        false; /* as on a GPU: recomputing includes the matmul before it */
    other = rig.config;
    other.train.recompute = CONFIG_RECOMPUTE_GELU;
    snprintf(cost, sizeof cost, "same bits; %.1f %% more",
             100 * memory_recomputed_part(&other, &rig.be));
    text = print(GIB_30);
    expect_saving(text, "train.recompute=gelu", &other, cost);
}

/* Options that are already set, impossible or without effect are not listed. */
Test(memory_text, only_options_with_effect) {
    open_run(CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = 1;
    rig.config.train.grad_accum_steps = 1;
    rig.config.train.recompute = CONFIG_RECOMPUTE_GELU;
    char *text = print(GIB_30);
    struct config other = rig.config;
    other.train.recompute = CONFIG_RECOMPUTE_LAYER;
    expect_saving(text, "train.recompute=layer", &other, "same bits");
    cr_expect_null(strstr(text, "train.recompute=gelu"));
    cr_expect_null(strstr(text, "train.micro_batch_size="));
    cr_expect_null(strstr(text, "lower"));
    rig.config.train.recompute = CONFIG_RECOMPUTE_LAYER;
    rig.config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    rig.config.autocast.enabled = false;
    text = print(GIB_30);
    cr_expect_null(strstr(text, "saves"), "%s", text);
    rig.config.autocast.enabled =
        true; /* savings of 16 bit depend on how the device widens operands */
    other = rig.config;
    other.precision = CONFIG_PRECISION_BF16;
    for (rig.config.train.micro_batch_size = 1; rig.config.train.micro_batch_size < 1000;
         rig.config.train.micro_batch_size *= 30) {
        other.train.micro_batch_size = rig.config.train.micro_batch_size;
        text = print(GIB_30);
        bool saves = total_of(&other) < total_of(&rig.config);
        cr_expect_eq(strstr(text, "\nprecision=bf16") != NULL, saves, "%s", text);
    }
}

Test(memory_text, largest_micro_batches) {
    static const double memories[] = {0.25, 0.03125,
                                      0.0078125}; /* many options, a few, none in 16 bit */
    for (size_t m = 0; m < COUNT(memories); m++) {
        open_run(CONFIG_PRECISION_BF16);
        char *text = print(memories[m]);
        const char *table = strstr(text, "\nLargest train.micro_batch_size in ");
        cr_assert_not_null(table);
        int dashes = 0;
        for (int p = 0; p < 3; p++)
            for (int level = 0; level < 3; level++) {
                struct config config = rig.config;
                config.precision = rig_precisions[p];
                config.train.recompute = (enum config_recompute)level;
                const char *line = row(table, p == 1 ? "bf16 *" : p == 0 ? "fp32  " : "fp16  ");
                cr_expect_str_eq(cell(line, level), largest(&config, memories[m]));
                cr_expect_null(strstr(table, "+"));
                dashes += cell(line, level)[0] == '-';
            }
        cr_expect_eq(dashes > 0, strstr(table, "-: weights, gradients") != NULL);
        cr_expect_eq(m == 2, dashes > 0);
    }
}

/* A size at the limit of a config is marked. */
Test(memory_text, limits_of_a_config_are_marked) {
    open_run(CONFIG_PRECISION_FP32);
    char *text = print(1e30);
    expect_match(text, "\nfp32 \\* +65536\\+ +65536\\+ +65536\\+\n");
    expect_match(text,
                 "\n\\+: the limit of a config; [^\n]*\n\nThis run fits: it takes [0-9.]+ MiB "
                 "of [0-9.]+ GiB\\.\n$");
}

Test(memory_text, fits_or_names_options) {
    char pattern[256];
    open_run(CONFIG_PRECISION_BF16);
    size_t own = total_of(&rig.config);
    char *text = print((double)own / 0x1p30);
    snprintf(pattern, sizeof pattern, "\nThis run fits: it takes %s MiB of %s MiB\\.\n$", mib(own),
             mib(own));
    expect_match(text, pattern);
    struct config layer = rig.config;
    layer.train.recompute = CONFIG_RECOMPUTE_LAYER;
    size_t less = total_of(&layer);
    text = print((double)less / 0x1p30);
    snprintf(pattern, sizeof pattern,
             "\nThis run does not fit: it takes %s MiB, and there are %s MiB\\.\n"
             "With these it takes %s MiB, with the same bits:\n\n"
             "  --set train.recompute=layer\n$",
             mib(own), mib(less), mib(less));
    expect_match(text, pattern);
    rig.config =
        layer; /* less exact settings are in the config, except gradients and residual stream */
    rig.config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    layer = rig.config;
    layer.gradients.dtype = CONFIG_DTYPE_LOWER;
    less = total_of(&layer);
    text = print((double)less / 0x1p30);
    expect_match(text, "\nWith these it takes [0-9.]+ MiB, but is less exact:\n\n"
                       "  --set gradients.dtype=lower\n$");
    rig.config = layer;
    layer.train.micro_batch_size = 1;
    layer.train.grad_accum_steps = 16;
    less = total_of(&layer);
    text = print((double)less / 0x1p30);
    expect_match(text,
                 "\nWith these it takes [0-9.]+ MiB, with the same steps but for the order of "
                 "sums:\n\n"
                 "  --set train.micro_batch_size=1 \\\\\n"
                 "  --set train.grad_accum_steps=16\n$");
    struct memory_advice advice;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, 1, &rig.error), RESULT_NONE);
    const struct memory_plan *least = &advice.plan;
    cr_expect_leq(memory_total(least), less);
    text = print(0);
    snprintf(pattern, sizeof pattern,
             "the least is %s MiB, of which weights, gradients\nand moments are %s MiB\\.",
             mib(memory_total(least)), mib(memory_state_bytes(least)));
    expect_match(text, "\nThis run does not fit: [^\n]* and there are 0.0 MiB\\.\nNo option ");
    expect_match(text, pattern);
}

/* --fit prints only whether the run fits, or flags with their costs. */
Test(memory_text, fit) {
    int status;
    char pattern[512];
    open_run(CONFIG_PRECISION_FP16);
    size_t own = total_of(&rig.config);
    char *text = print_status(&status, memory_print_fit, (double)own / 0x1p30);
    snprintf(pattern, sizeof pattern, "^This run fits: it takes %s MiB of %s MiB\\.\n$", mib(own),
             mib(own));
    cr_expect_eq(status, 0);
    expect_match(text, pattern);
    struct config other = rig.config;
    other.train.recompute = CONFIG_RECOMPUTE_LAYER;
    other.gradients.dtype = CONFIG_DTYPE_LOWER;
    other.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    other.train.micro_batch_size = 1;
    other.train.grad_accum_steps = 16;
    other.weights.copy = CONFIG_COPY_CAST;
    size_t less = total_of(&other);
    text = print_status(&status, memory_print_fit, (double)less / 0x1p30);
    cr_expect_eq(status, 0);
    snprintf(pattern, sizeof pattern,
             "^This run does not fit: it takes %s MiB, and there are %s MiB\\.\n"
             "With these it takes %s MiB, but is less exact:\n\n",
             mib(own), mib(less), mib(less));
    expect_match(text, pattern);
    expect_match(text,
                 "\n\n  --set train.recompute=layer \\\\\n  --set gradients.dtype=lower \\\\\n"
                 "  --set optimizer.moments=bfloat16 \\\\\n  --set weights.copy=cast \\\\\n"
                 "  --set train.micro_batch_size=1 \\\\\n  --set train.grad_accum_steps=16\n\n"
                 "Their costs\n\noption +costs\n-+  -+\n");
    snprintf(pattern, sizeof pattern,
             "\ntrain.recompute=layer +same bits; %.1f %% more arithmetic\n"
             "gradients.dtype=lower +gradients rounded to 16 bit\n"
             "optimizer.moments=bfloat16 +moments rounded to bf16\n"
             "weights.copy=cast +same bits; weights cast each pass\n"
             "train.micro_batch_size=1 +different summation order; 16 per step\n$",
             100 * memory_recomputed_part(&other, &rig.be));
    expect_match(text, pattern);
    text = print_status(&status, memory_print_fit, 0);
    cr_expect_eq(status, RESULT_NONE);
    expect_match(text, "^This run does not fit: [^\n]*\nNo option makes it fit: [^\n]*\n[^\n]*\n"
                       "or train adapters: [^\n]*\n$");
}

/* The longest advice fits an error message. */
Test(memory_text, advice_fits_a_message) {
    struct memory_advice advice = {.plan.activations = (size_t)1 << 50, .bits = MEMORY_LESS_EXACT};
    char *text;
    size_t size;
    open_run(CONFIG_PRECISION_FP16);
    advice.config = rig.config;
    advice.config.train.grad_accum_steps = 65536;
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++) advice.chosen[i] = true;
    FILE *out = open_memstream(&text, &size);
    memory_print_advice(out, &advice, 0);
    fclose(out);
    cr_expect_lt(size, ERROR_MAX - 200);
    cr_expect_gt(size, 9 * strlen("  --set gradients.dtype=lower"));
    out = open_memstream(&text, &size);
    advice.bits = MEMORY_UNCHANGED; /* the run fits: nothing is printed */
    memory_print_advice(out, &advice, 0);
    fclose(out);
    cr_expect_eq(size, 0);
}

/* The precision has no effect if autocast is off. */
Test(memory_text, without_autocast_the_run_is_in_fp32) {
    open_run(CONFIG_PRECISION_BF16);
    rig.config.autocast.enabled = false;
    char *text = print(80);
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
    cr_expect(request.free);
    cr_expect_gt(request.memory, (size_t)1 << 20);
    cr_expect_lt(fabs((double)request.memory / (double)backend_available(&rig.be) - 1), 0.5);
    request = memory_request(&rig.config, &rig.be, 2.5);
    cr_expect_not(request.free);
    cr_expect_eq(request.memory, (size_t)5 << 29);
    char *text = print(-1);
    cr_expect_not_null(strstr(text, "GiB (free here)"));
    text = print(2.5);
    cr_expect_null(strstr(text, "free here"));
    cr_expect_not_null(strstr(text, "in 2560.0 MiB\n"));
}

/* A device without bf16 has dashes in that column. */
Test(memory_text, without_bf16) {
    open_run(CONFIG_PRECISION_FP16);
    rig.be.device.computes[DTYPE_BF16] = false;
    char *text = print(GIB_30);
    cr_expect_str_eq(cell(row(text, "total"), 1), "-");
    expect_match(text, "\nbf16 +- +- +-\n");
    cr_expect_null(strstr(text, "-: weights"));
}

/* Large runs are printed in GiB, and no line is wider than 80 columns. */
Test(memory_text, large_runs_stay_within_the_width) {
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.n_layer = 96;
    rig.config.model.n_head = 96;
    rig.config.model.n_embd = 12288;
    rig.config.model.vocab_size = 50257;
    rig.config.data.seq_len = rig.config.model.n_positions = 2048;
    rig.config.train.micro_batch_size = 6144;
    rig.config.train.grad_accum_steps = 10000;
    rig_open_backend(&rig, test_device(), 2);
    char *text = print(80);
    struct memory_plan plan;
    cr_assert_eq(memory_plan_of(&plan, &rig.config, &rig.be, &rig.error), 0);
    cr_expect_str_eq(cell(row(text, "moments"), 1), gib(plan.moments));
    cr_expect_str_eq(cell(row(text, "total"), 1), gib(memory_total(&plan)));
    expect_match(text, "\nbf16 \\* +- +- +-\n");
}
