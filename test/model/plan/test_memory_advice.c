/* Advice: the cheapest set of options that fits. */
#include "model/io/config_file.h"
#include "test/model/plan/memory_fixture.h"

#include "model/plan/memory_options.h"

TestSuite(memory_advice, .fini = close_rig);

enum { CANDIDATES_MAX = 600 };

/* Configs in order of cost, and the bytes of their plans. */
struct candidates {
    size_t count;
    struct config list[CANDIDATES_MAX];
    size_t totals[CANDIDATES_MAX];
};

static struct candidates all;

/* Lists the sets of options cheaper than a smaller micro-batch, on top of config. */
static void add_cheap(const struct config *config, enum recompute level) {
    bool lower = config->precision != CONFIG_PRECISION_FP32;
    bool fp16 = config->precision == CONFIG_PRECISION_FP16;
    bool unsplit =
        config->precision == CONFIG_PRECISION_BF16 && config->weights.copy == CONFIG_COPY_KEPT;
    for (int cast = 0; cast <= fp16; cast++)
        for (int moments = CONFIG_MOMENTS_FLOAT32; moments <= CONFIG_MOMENTS_INT8; moments++)
            for (int gradients = 0; gradients <= lower; gradients++)
                for (int recompute = (int)level; recompute < 3; recompute++)
                    for (int split = 0; split <= unsplit; split++) {
                        struct config other = *config;
                        if (cast) other.weights.copy = CONFIG_COPY_CAST;
                        other.optimizer.moments = (enum config_moments)moments;
                        if (gradients) other.gradients.dtype = CONFIG_DTYPE_LOWER;
                        other.train.recompute = levels[recompute];
                        if (split) other.weights.copy = CONFIG_COPY_SPLIT;
                        cr_assert_lt(all.count, CANDIDATES_MAX);
                        all.list[all.count++] = other;
                    }
}

static void list_candidates(void) {
    const struct config *from = &rig.config;
    int64_t sequences = from->train.micro_batch_size * from->train.grad_accum_steps;
    all.count = 0;
    for (int turn = 0; turn <= (from->precision == CONFIG_PRECISION_FP32); turn++) {
        struct config config = *from;
        if (turn)
            config.precision =
                rig.be.device.computes[DTYPE_BF16] ? CONFIG_PRECISION_BF16 : CONFIG_PRECISION_FP16;
        bool lower = config.precision != CONFIG_PRECISION_FP32;
        for (int residual = 0; residual <= lower; residual++) {
            if (residual) config.autocast.residual = CONFIG_DTYPE_LOWER;
            for (int64_t batch = from->train.micro_batch_size; batch > 0; batch--) {
                if (sequences % batch) continue;
                config.train.micro_batch_size = batch;
                config.train.grad_accum_steps = sequences / batch;
                for (int offload = 0; offload <= !rig.be.device.host_memory; offload++) {
                    config.offload.optimizer = offload;
                    add_cheap(&config, from->train.recompute);
                }
            }
        }
    }
    for (size_t i = 0; i < all.count; i++) all.totals[i] = total_of(&all.list[i]);
}

static void expect_config(const struct config *a, const struct config *b) {
    cr_expect_eq(a->precision, b->precision);
    cr_expect_eq(a->train.recompute, b->train.recompute);
    cr_expect_eq(a->train.micro_batch_size, b->train.micro_batch_size);
    cr_expect_eq(a->train.grad_accum_steps, b->train.grad_accum_steps);
    cr_expect_eq(a->gradients.dtype, b->gradients.dtype);
    cr_expect_eq(a->optimizer.moments, b->optimizer.moments);
    cr_expect_eq(a->weights.copy, b->weights.copy);
    cr_expect_eq(a->offload.optimizer, b->offload.optimizer);
    cr_expect_eq(a->autocast.residual, b->autocast.residual);
}

/* The flags to paste give the advised config. */
static void expect_settings(const struct memory_advice *advice) {
    struct config config = rig.config;
    char texts[2 * MEMORY_OPTIONS][MEMORY_SETTING_MAX], *overrides[2 * MEMORY_OPTIONS];
    int count = 0;
    for (enum memory_option i = 0; i < MEMORY_OPTIONS; i++)
        for (int key = 0;
             advice->chosen[i] && memory_option_setting(texts[count], i, key, &advice->config);
             key++, count++)
            overrides[count] = texts[count];
    cr_expect_eq(count > 0, advice->bits != MEMORY_UNCHANGED);
    cr_assert_eq(config_override(&config, "tiny", overrides, count, &rig.error), 0, "%s",
                 rig.error.text);
    expect_config(&config, &advice->config);
}

static enum memory_bits bits_between(const struct config *a, const struct config *b) {
    if (a->precision != b->precision || a->gradients.dtype != b->gradients.dtype ||
        a->optimizer.moments != b->optimizer.moments ||
        a->autocast.residual != b->autocast.residual)
        return MEMORY_LESS_EXACT;
    if (a->train.micro_batch_size != b->train.micro_batch_size) return MEMORY_OTHER_ORDER;
    return memcmp(a, b, sizeof *a) ? MEMORY_SAME_BITS : MEMORY_UNCHANGED;
}

/* Checks the advice for exactly the memory of each candidate, and for one byte less. */
static void check_advice(void) {
    struct memory_advice advice;
    size_t least = SIZE_MAX, advised = 0;
    list_candidates();
    for (size_t i = 0; i < all.count; i++) least = all.totals[i] < least ? all.totals[i] : least;
    for (size_t i = 0; i < 2 * all.count; i += 5) {
        size_t memory = all.totals[i / 2] - i % 2, first = 0;
        if (memory < least) continue;
        while (all.totals[first] > memory) first++;
        cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, SIZE_MAX, &rig.error), 0);
        expect_config(&advice.config, &all.list[first]);
        cr_expect_eq(memory_total(&advice.plan), all.totals[first]);
        cr_expect_eq(advice.bits, bits_between(&rig.config, &all.list[first]));
        expect_settings(&advice);
        advised += first > 0;
    }
    cr_expect_gt(advised, 5);
    cr_expect_eq(memory_advise(&advice, &rig.config, &rig.be, least - 1, SIZE_MAX, &rig.error),
                 RESULT_NONE);
    cr_expect_geq(memory_total(&advice.plan), least);
    cr_expect_leq(memory_total(&advice.plan) - advice.plan.workspace, least);
}

static void open_run(enum config_precision precision) {
    open_tiny(precision);
    rig.config.train.micro_batch_size = 4;
    rig.config.train.grad_accum_steps = 3;
}

Test(memory_advice, is_the_first_set_that_fits) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t level = 0; level < COUNT(levels); level += 2) {
            open_run(rig_precisions[p]);
            rig.config.train.recompute = levels[level];
            check_advice();
        }
}

Test(memory_advice, of_a_config_with_options_set) {
    open_run(CONFIG_PRECISION_BF16);
    rig.config.weights.copy = CONFIG_COPY_KEPT;
    check_advice();
    open_run(CONFIG_PRECISION_FP32);
    rig.be.device.computes[DTYPE_BF16] = false;
    check_advice();
}

Test(memory_advice, of_a_device_with_its_own_memory) {
    open_run(CONFIG_PRECISION_BF16);
    rig.be.device.host_memory = false;
    check_advice();
}

/* Less exact options come before slower ones if either suffices; none is chosen without need. */
Test(memory_advice, order_of_cost) {
    struct memory_advice advice;
    open_run(CONFIG_PRECISION_FP16);
    rig.config.train.recompute = RECOMPUTE_LAYER;
    struct config config = rig.config;
    config.gradients.dtype = CONFIG_DTYPE_LOWER;
    size_t memory = total_of(&config);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, SIZE_MAX, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_GRADIENTS] && !advice.chosen[MEMORY_MICRO_BATCH]);
    config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    memory = total_of(&config);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, SIZE_MAX, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_MOMENTS] && !advice.chosen[MEMORY_CODES]);
    config.optimizer.moments = CONFIG_MOMENTS_INT8;
    memory = total_of(&config);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, SIZE_MAX, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_CODES] && !advice.chosen[MEMORY_MOMENTS] &&
              !advice.chosen[MEMORY_CAST]);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory - 1, SIZE_MAX, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_CAST] && !advice.chosen[MEMORY_MICRO_BATCH]);
}

/* The layers of a frozen model leave the device before a micro-batch is divided. */
Test(memory_advice, streams_frozen_layers) {
    struct memory_advice advice;
    open_run(CONFIG_PRECISION_BF16);
    rig.be.device.host_memory = false;
    rig.config.adapter.type = CONFIG_ADAPTER_LORA;
    rig.config.model.n_layer = 8;
    struct config config = rig.config;
    config.train.recompute = RECOMPUTE_LAYER;
    config.gradients.dtype = CONFIG_DTYPE_LOWER;
    config.optimizer.moments = CONFIG_MOMENTS_BFLOAT16;
    config.offload.activations = config.offload.optimizer = config.offload.weights = true;
    const size_t memory = total_of(&config);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, SIZE_MAX, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_STREAM] && !advice.chosen[MEMORY_MICRO_BATCH]);
    cr_expect(advice.config.offload.weights);
    const size_t host = memory_host(&advice.plan), layers = advice.plan.streamed;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, host, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_STREAM] && !advice.chosen[MEMORY_MICRO_BATCH]);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory, layers - 1, &rig.error), 0);
    cr_expect_lt(memory_host(&advice.plan), layers);
    cr_expect_leq(memory_total(&advice.plan), memory);
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, memory - 1, SIZE_MAX, &rig.error), 0);
    cr_expect(advice.chosen[MEMORY_MICRO_BATCH]);
}
