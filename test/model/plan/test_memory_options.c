/* Memory options: their keys, savings, costs and names. */
#include "test/model/families.h"
#include "test/model/plan/memory_fixture.h"

#include "model/plan/memory_costs.h"
#include "model/plan/memory_options.h"

TestSuite(memory_options, .fini = close_rig);

static void expect_applies(enum memory_option option, bool applies) {
    struct config before = rig.config;
    cr_expect_eq(memory_apply(&rig.config, option, &rig.be), applies, "%d", (int)option);
    if (!applies) cr_expect_arr_eq(&rig.config, &before, sizeof before);
}

Test(memory_options, set_their_keys_once) {
    open_tiny(CONFIG_PRECISION_BF16);
    struct config *config = &rig.config;
    expect_applies(MEMORY_RECOMPUTE_GELU, true);
    cr_expect_eq(config->train.recompute, RECOMPUTE_GELU);
    expect_applies(MEMORY_RECOMPUTE_GELU, false);
    expect_applies(MEMORY_RECOMPUTE_LAYER, true);
    cr_expect_eq(config->train.recompute, RECOMPUTE_LAYER);
    expect_applies(MEMORY_RECOMPUTE_LAYER, false);
    expect_applies(MEMORY_RECOMPUTE_GELU, false);
    expect_applies(MEMORY_GRADIENTS, true);
    cr_expect_eq(config->gradients.dtype, CONFIG_DTYPE_LOWER);
    expect_applies(MEMORY_GRADIENTS, false);
    expect_applies(MEMORY_MOMENTS, true);
    cr_expect_eq(config->optimizer.moments, CONFIG_MOMENTS_BFLOAT16);
    expect_applies(MEMORY_MOMENTS, false);
    config->optimizer.min_8bit_size = INT64_MAX; /* no tensor is large enough */
    expect_applies(MEMORY_CODES, false);
    config->optimizer.min_8bit_size = 0;
    expect_applies(MEMORY_CODES, true);
    cr_expect_eq(config->optimizer.moments, CONFIG_MOMENTS_INT8);
    expect_applies(MEMORY_CODES, false);
    expect_applies(MEMORY_MOMENTS, false);
    expect_applies(MEMORY_RESIDUAL, true);
    cr_expect_eq(config->autocast.residual, CONFIG_DTYPE_LOWER);
    expect_applies(MEMORY_RESIDUAL, false);
    expect_applies(MEMORY_PRECISION, false);
}

Test(memory_options, only_moments_and_precision_of_a_run_in_fp32) {
    open_tiny(CONFIG_PRECISION_FP32);
    expect_applies(MEMORY_SPLIT, false);
    expect_applies(MEMORY_CAST, false);
    expect_applies(MEMORY_GRADIENTS, false);
    expect_applies(MEMORY_RESIDUAL, false);
    expect_applies(MEMORY_MOMENTS, true);
    expect_applies(MEMORY_PRECISION, true);
    cr_expect_eq(rig.config.precision, CONFIG_PRECISION_BF16);
    rig.config.precision = CONFIG_PRECISION_FP32;
    rig.be.device.computes[DTYPE_BF16] = false;
    expect_applies(MEMORY_PRECISION, true);
    cr_expect_eq(rig.config.precision, CONFIG_PRECISION_FP16);
    rig.config.autocast.enabled = false; /* then fp16 has no effect either */
    expect_applies(MEMORY_GRADIENTS, false);
    expect_applies(MEMORY_PRECISION, false);
}

/* Only a kept copy can be removed, and split master weights are preferred where possible. */
Test(memory_options, copies_of_weights) {
    static const enum config_copy copies[] = {CONFIG_COPY_AUTO, CONFIG_COPY_SPLIT, CONFIG_COPY_KEPT,
                                              CONFIG_COPY_CAST};
    for (size_t i = 0; i < COUNT(copies); i++) {
        open_tiny(CONFIG_PRECISION_BF16);
        bool kept = copies[i] == CONFIG_COPY_KEPT, cast = copies[i] == CONFIG_COPY_CAST;
        rig.config.weights.copy = copies[i];
        expect_applies(MEMORY_CAST, false);
        expect_applies(MEMORY_SPLIT, kept);
        if (kept) cr_expect_eq(rig.config.weights.copy, CONFIG_COPY_SPLIT);
        rig.config.precision = CONFIG_PRECISION_FP16;
        rig.config.weights.copy = copies[i];
        expect_applies(MEMORY_SPLIT, false);
        expect_applies(MEMORY_CAST, !cast);
        cr_expect_eq(rig.config.weights.copy, CONFIG_COPY_CAST);
    }
}

/* A device with separate memory. */
static void with_link(void) {
    rig.be.device.host_memory = false;
    rig.be.device.link = 1e6;
}

Test(memory_options, offload_needs_separate_device_memory) {
    struct memory_plan before, after;
    open_tiny(CONFIG_PRECISION_BF16);
    expect_applies(MEMORY_OFFLOAD, false);
    with_link();
    before = plan_of(&rig.config);
    cr_expect_eq(memory_offload_seconds(&rig.config, &rig.be), 0);
    expect_applies(MEMORY_OFFLOAD, true);
    expect_applies(MEMORY_OFFLOAD, false);
    after = plan_of(&rig.config);
    cr_expect_eq(before.host, 0);
    /* Both moments in fp32, and the remainders of matrices except the token embedding's. */
    cr_expect_geq(after.host, before.moments);
    cr_expect_lt(after.host, before.moments + before.master / 2);
    cr_expect_float_eq(memory_offload_seconds(&rig.config, &rig.be), (double)after.host / 1e6,
                       1e-9);
}

/* Buffers for two layers take the place of six. A micro-batch copies six layers, then four. */
Test(memory_options, frozen_layers_are_streamed_to_a_device) {
    open_tiny(CONFIG_PRECISION_BF16);
    with_link();
    rig.config.adapter.type = CONFIG_ADAPTER_LORA;
    rig.config.model.n_layer = 6;
    rig.config.train.grad_accum_steps = 3;
    rig.be.device.host_memory = true;
    expect_applies(MEMORY_STREAM, false);
    rig.be.device.host_memory = false;
    const struct memory_plan before = plan_of(&rig.config);
    cr_expect_eq(memory_copy_seconds(&rig.config, &rig.be), 0);
    expect_applies(MEMORY_STREAM, true);
    expect_applies(MEMORY_STREAM, false);
    const struct memory_plan after = plan_of(&rig.config);
    enum { LAYER = 12 * WIDTH * WIDTH * 2 /* bf16 */ };
    cr_expect_eq(after.streamed, 6 * LAYER);
    cr_expect_eq(memory_total(&before) - memory_total(&after), (6 - 2) * LAYER);
    cr_expect_eq(after.host, 0);
    cr_expect_float_eq(memory_copies_of(&after, &rig.config).to_device, 3.0 * (6 + 4) * LAYER, 0.5);
    cr_expect_float_eq(memory_copy_seconds(&rig.config, &rig.be), 3e-6 * (6 + 4) * LAYER, 1e-9);
    cr_expect_eq(memory_offload_seconds(&rig.config, &rig.be), 0);
}

/* Trained layers leave the device, too. The update reads and writes them in host memory. Copies
 * that are kept are not streamed, which fp32 does not have. */
Test(memory_options, trained_layers_are_streamed_unless_copies_are_kept) {
    enum { LAYER = 12 * WIDTH * WIDTH };
    open_tiny(CONFIG_PRECISION_BF16);
    with_link();
    rig.config.model.n_layer = 6;
    rig.be.device.host_memory = false;
    rig.config.weights.copy = CONFIG_COPY_KEPT;
    expect_applies(MEMORY_STREAM, false);
    rig.config.precision = CONFIG_PRECISION_FP32;
    struct memory_plan before = plan_of(&rig.config);
    expect_applies(MEMORY_STREAM, true);
    struct memory_plan after = plan_of(&rig.config);
    cr_expect_eq(after.streamed, 6 * LAYER * 4);
    cr_expect_eq(memory_total(&before) - memory_total(&after), (6 - 2) * LAYER * 4);
    cr_expect_float_eq(memory_offload_seconds(&rig.config, &rig.be), 6e-6 * LAYER * 4, 1e-9);
    rig.config.offload.weights = false;
    rig.config.precision = CONFIG_PRECISION_BF16;
    rig.config.weights.copy = CONFIG_COPY_AUTO;
    before = plan_of(&rig.config);
    expect_applies(MEMORY_STREAM, true);
    after = plan_of(&rig.config);
    cr_expect_eq(after.streamed, 6 * LAYER * 2);
    cr_expect_eq(memory_total(&before) - memory_total(&after), (6 - 2) * LAYER * 2);
}

/* Gradients leave in each micro-batch and return in all but the first; activations leave and
 * return, all but those of the last two layers. */
Test(memory_options, gradients_and_activations_leave_the_device) {
    enum { LAYER = 12 * WIDTH * WIDTH * 4 };
    open_tiny(CONFIG_PRECISION_BF16);
    with_link();
    rig.config.model.n_layer = 6;
    rig.config.train.grad_accum_steps = 3;
    rig.be.device.host_memory = false;
    const struct memory_plan before = plan_of(&rig.config);
    expect_applies(MEMORY_SENT, true);
    expect_applies(MEMORY_SENT, false);
    struct memory_plan after = plan_of(&rig.config);
    cr_expect_eq(after.host_gradients, 6 * LAYER);
    cr_expect_eq(before.gradients - after.gradients, (6 - 2) * LAYER);
    struct memory_copies copies = memory_copies_of(&after, &rig.config);
    cr_expect_float_eq(copies.to_host, 3.0 * 6 * LAYER, 0.5);
    cr_expect_float_eq(copies.to_device, 2.0 * 6 * LAYER, 0.5);
    cr_expect_float_eq(memory_copy_seconds(&rig.config, &rig.be), 3e-6 * 6 * LAYER, 1e-9);
    cr_expect_float_eq(memory_offload_seconds(&rig.config, &rig.be), 2e-6 * 6 * LAYER, 1e-9);
    rig.config.offload.gradients = false;
    expect_applies(MEMORY_SAVED, true);
    expect_applies(MEMORY_SAVED, false);
    after = plan_of(&rig.config);
    const double saved = (double)after.host_activations;
    cr_expect_eq((before.activations - after.activations) * 6, after.host_activations * 4);
    copies = memory_copies_of(&after, &rig.config);
    cr_expect_float_eq(copies.to_host, 3 * saved * 4 / 6, 0.5);
    cr_expect_float_eq(copies.to_device, copies.to_host, 0.5);
    rig.config.adapter.type = CONFIG_ADAPTER_LORA;
    expect_applies(MEMORY_SENT, false);
}

/* The next smaller size that divides the sequences of a step. */
Test(memory_options, smaller_micro_batches) {
    static const int64_t pairs[][2] = {{15, 2}, {10, 3}, {6, 5}, {5, 6}, {3, 10}, {2, 15}, {1, 30}};
    open_tiny(CONFIG_PRECISION_BF16);
    rig.config.train.micro_batch_size = pairs[0][0];
    rig.config.train.grad_accum_steps = pairs[0][1];
    for (size_t i = 1; i < COUNT(pairs); i++) {
        expect_applies(MEMORY_MICRO_BATCH, true);
        cr_expect_eq(rig.config.train.micro_batch_size, pairs[i][0]);
        cr_expect_eq(rig.config.train.grad_accum_steps, pairs[i][1]);
    }
    expect_applies(MEMORY_MICRO_BATCH, false);
    rig.config.train.micro_batch_size = 2;
    rig.config.train.grad_accum_steps = 40000; /* twice that exceeds the limit of the key */
    expect_applies(MEMORY_MICRO_BATCH, false);
}

/* Each option saves memory in a model and micro-batch for which every part matters. */
Test(memory_options, save_memory) {
    for (enum memory_option option = 0; option < MEMORY_OPTIONS; option++) {
        enum config_precision precision = option == MEMORY_PRECISION ? CONFIG_PRECISION_FP32
                                          : option == MEMORY_CAST    ? CONFIG_PRECISION_FP16
                                                                     : CONFIG_PRECISION_BF16;
        open_tiny(precision);
        rig.config.train.micro_batch_size = 64;
        if (option == MEMORY_TEXTS) rig.config.train.objective = CONFIG_OBJECTIVE_GRPO;
        if (option == MEMORY_SPLIT) rig.config.weights.copy = CONFIG_COPY_KEPT;
        const bool streams =
            option == MEMORY_SAVED || option == MEMORY_STREAM || option == MEMORY_SENT;
        if (option == MEMORY_OFFLOAD || streams) with_link();
        if (option == MEMORY_BASE || streams) {
            expect_applies(option, false); /* two layers take the buffers of two */
            rig.config.model.n_layer = 8;  /* one is dequantized at a time */
        }
        if (option == MEMORY_BASE) rig.config.adapter.type = CONFIG_ADAPTER_LORA;
        size_t before = total_of(&rig.config);
        expect_applies(option, true);
        cr_expect_lt(total_of(&rig.config), before, "%d", (int)option);
        if (option == MEMORY_BASE || streams) expect_applies(option, false);
    }
}

static void expect_named(enum memory_option option, const char *settings, const char *cost) {
    struct config to = rig.config;
    char text[200] = "", setting[MEMORY_SETTING_MAX], given[MEMORY_COST_MAX];
    cr_assert(memory_apply(&to, option, &rig.be));
    for (int key = 0; memory_option_setting(setting, option, key, &to); key++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", key ? " " : "", setting);
    cr_expect_str_eq(text, settings);
    memory_option_cost(given, option, &rig.config, &to, &rig.be);
    cr_expect_str_eq(given, cost, "%s", settings);
}

/* Options that test_memory_text.c does not find in a table of savings. */
Test(memory_options, names_and_costs) {
    char cost[MEMORY_COST_MAX];
    open_tiny(CONFIG_PRECISION_FP16);
    rig.config.train.micro_batch_size = 8;
    with_link();
    struct config other = rig.config;
    other.offload.optimizer = true;
    snprintf(cost, sizeof cost, "same bits; %.3g s of traffic a step",
             memory_offload_seconds(&other, &rig.be));
    expect_named(MEMORY_OFFLOAD, "offload.optimizer=true", cost);
    rig.be.device.link = 1e9;
    snprintf(cost, sizeof cost, "same bits; %.3g ms of traffic a step",
             1e3 * memory_offload_seconds(&other, &rig.be));
    expect_named(MEMORY_OFFLOAD, "offload.optimizer=true", cost);
    rig.be.device.host_memory = true;
    expect_named(MEMORY_MICRO_BATCH, "train.micro_batch_size=4 train.grad_accum_steps=2",
                 "different summation order; 2 per step");
    rig.config.precision = CONFIG_PRECISION_BF16;
    rig.config.weights.copy = CONFIG_COPY_KEPT;
    expect_named(MEMORY_SPLIT, "weights.copy=split", "same bits");
    rig.config.precision = CONFIG_PRECISION_FP32;
    expect_named(MEMORY_PRECISION, "precision=bf16", "products and activations in 16 bit");
    /* A matmul that is already recomputed before GELU does not cost again. */
    rig.be.device.gelu_of_stored = false;
    other = rig.config;
    other.train.recompute = RECOMPUTE_LAYER;
    rig.config.train.recompute = RECOMPUTE_GELU;
    double part = memory_recomputed_part(&rig.config, &rig.be);
    cr_expect_gt(part, 0.01);
    snprintf(cost, sizeof cost, "same bits; %.1f %% more arithmetic",
             100 * (memory_recomputed_part(&other, &rig.be) - part));
    expect_named(MEMORY_RECOMPUTE_LAYER, "train.recompute=layer", cost);
}

/* ---- cost of recomputing */

/* Multiply-adds of all operations of a walk. */
static double counted;

static void count_matmul(struct backend *be, const struct matmul_args *args) {
    double rows = (double)tensor_rows(args->a), columns = (double)tensor_columns(args->a);
    const struct tensor *b = args->b;
    (void)be;
    counted += rows * columns * (double)(args->transpose_b ? tensor_rows(b) : tensor_columns(b));
}

/* Returns half of the multiply-adds of scores and of weighted values. */
static double attention(const struct tensor *out) {
    return (double)tensor_count(out) * (double)out->shape[1];
}

static void count_forward(struct backend *be, const struct attention_forward_args *args) {
    (void)be;
    counted += attention(args->out);
}

static void count_backward(struct backend *be, const struct attention_backward_args *args) {
    (void)be;
    counted += 2.5 * attention(args->out);
}

static double count_products(const struct config *config) {
    const struct operations *plan = rig.be.plan;
    struct operations counting = *plan;
    counting.matmul = count_matmul;
    counting.attention_forward = count_forward;
    counting.attention_backward = count_backward;
    counted = 0;
    rig.be.plan = &counting;
    plan_of(config);
    rig.be.plan = plan;
    return counted;
}

Test(memory_options, recomputed_part_is_what_a_walk_counts) {
    static const char *const targets[] = {"c_attn", "mlp.c_proj", "c_fc"};
    for (int variant = 0; variant < 36; variant++) {
        open_tiny(variant & 4 ? CONFIG_PRECISION_FP8 : CONFIG_PRECISION_BF16);
        if (variant >= 32) set_family(&rig.config, 7); /* norms after branches */
        rig.config.model.n_layer = variant & 1 ? 5 : 1;
        if (variant & 2) rig.config.model.vocab_size = 1000;
        rig.config.autocast.lower16_first = 2; /* with fp8 GELU is fused only in these */
        if (variant >> 3 > 0 && variant < 32) rig.config.adapter.type = CONFIG_ADAPTER_LORA;
        for (int i = 0; i < variant >> 3 && variant < 32; i++)
            rig.config.adapter.targets.items[rig.config.adapter.targets.count++] = targets[i];
        cr_expect_eq(memory_recomputed_part(&rig.config, &rig.be), 0);
        double all = count_products(&rig.config);
        for (int stored = 0; stored < 2; stored++)
            for (size_t level = 0; level < COUNT(levels); level++) {
                struct config config = rig.config;
                config.train.recompute = levels[level];
                rig.be.device.gelu_of_stored = stored;
                double again = count_products(&config) - all;
                double part = memory_recomputed_part(&config, &rig.be);
                cr_expect_lt(fabs(part - again / all), 1e-12, "%d %d %zu: %g, %g", variant, stored,
                             level, part, again / all);
            }
    }
}
