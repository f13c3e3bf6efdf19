/* Plans of variants: the bytes, what fits, what to change. */
#include "model/config/config_check.h"
#include "model/files/config_file.h"
#include "test/model/trainer_fixture.h"

#include "model/lab/memory/memory_plan.h"

enum { LAYERS = 2, WIDTH = 128, TOKENS = 64, VOCABULARY = 300 };

static const enum config_recompute levels[] = {CONFIG_RECOMPUTE_NONE, CONFIG_RECOMPUTE_GELU,
                                               CONFIG_RECOMPUTE_LAYER};

/* Sizes that leave no gaps: all are multiples of the alignments. */
static void open_tiny(struct rig *rig, enum config_precision precision) {
    rig_config(&rig->config, precision);
    rig->config.model.n_layer = LAYERS;
    rig->config.model.n_embd = WIDTH;
    rig->config.model.vocab_size = VOCABULARY;
    rig->config.train.micro_batch_size = TOKENS / RIG_LENGTH;
    rig->config.train.grad_accum_steps = 1;
    rig_open_backend(rig, test_device(), 2);
}

static struct memory_plan plan_of(struct rig *rig, const struct config *config) {
    struct memory_plan plan;
    cr_assert_eq(memory_plan_of(&plan, config, &rig->be, &rig->error), 0, "%s", rig->error.text);
    return plan;
}

static size_t total_of(struct rig *rig, const struct config *config) {
    return plan_of(rig, config).total;
}

static size_t total_with_batch(struct rig *rig, int64_t batch) {
    struct config config = rig->config;
    config.train.micro_batch_size = batch;
    return total_of(rig, &config);
}

/* ---- plans */

Test(memory_plan, is_the_plan_of_a_run) {
    bool grows = false; /* the workspace with the batch, as it does where operands are widened */
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (int variant = 0; variant < 12; variant++) {
            struct rig rig = {0};
            struct memory_plan large;
            struct config larger;
            rig_config(&rig.config, rig_precisions[p]);
            rig.config.train.recompute = levels[variant / 4];
            if (variant & 1) rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
            if (variant & 2) rig.config.autocast.residual = CONFIG_DTYPE_LOWER;
            if (variant & 2) rig.config.sample.every = 1;
            rig_open_backend(&rig, test_device(), 2);
            larger = rig.config; /* first, so that its workspace is known when the next is asked */
            larger.train.micro_batch_size = 64;
            large = plan_of(&rig, &larger);
            struct memory_plan plan = plan_of(&rig, &rig.config);
            cr_expect_leq(plan.workspace, large.workspace);
            grows = grows || plan.workspace < large.workspace;
            cr_expect_eq(rig.be.workspace_bytes, 0);
            cr_expect_eq(rig.be.op, rig.be.run);
            rig.be.workspace_bytes = (size_t)1 << 40; /* of a run there was before */
            cr_expect_eq(total_of(&rig, &rig.config), plan.total);
            cr_expect_eq(rig.be.workspace_bytes, (size_t)1 << 40);
            rig.be.workspace_bytes = 0;
            rig_open_data(&rig);
            cr_assert_eq(
                trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be, true, &rig.error),
                0);
            cr_expect_arr_eq(&plan, &rig.trainer.gpt.memory, sizeof plan);
            cr_expect_eq(plan.total, plan.master + plan.lower + plan.gradients + plan.moments +
                                         plan.activations + plan.batches + plan.workspace +
                                         plan.library);
            rig_close(&rig);
        }
    cr_expect(grows);
}

/* wte 384 x 128, for 300 tokens; wpe 32 x 128; a layer: matrices 12 x 128 x 128, biases 9 x 128,
 * norms 4 x 128; the last norm 2 x 128. */
enum {
    VECTORS = LAYERS * (1152 + 512) + 256,
    ELEMENTS = 49152 + 4096 + LAYERS * 196608 + VECTORS,
    COPIED = ELEMENTS - 4096, /* wpe is read in fp32 */
};

enum {
    STREAM = TOKENS * WIDTH * 4, /* rows of the width, in fp32 */
    COLUMN = TOKENS * 4,         /* a number for each row */
};

/* What a layer keeps: its input and the sum in the middle, two norms' statistics, attention's (two
 * heads), then a stream each of norms' results (2), attention's result (1), q, k, v (3), and of the
 * MLP (4 + 4). streams: bytes of one of these. */
static size_t layer_bytes(size_t stream, bool gelu) {
    return 2 * STREAM + 4 * COLUMN + 2 * COLUMN + (2 + 1 + 3 + 4 + (gelu ? 4u : 0u)) * stream;
}

/* Tokens and targets; the end of the stream, its norm's result and statistics, losses, logits
 * (three times the width), branch; then gradients: of the stream and, where its dtype is
 * another, of the branch, of a norm, of the MLP, of q, k, v. */
static size_t model_bytes(size_t stream) {
    size_t forward = 2 * COLUMN + STREAM + 3 * COLUMN + (1 + 3 + 1) * stream;
    size_t branch = stream == STREAM ? 0 : stream;
    return forward + STREAM + branch + (1 + 4 + 3) * stream;
}

Test(memory_plan, bytes_of_a_tiny_model) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0};
        bool lower = rig_precisions[p] != CONFIG_PRECISION_FP32;
        size_t stream = lower ? STREAM / 2 : STREAM;
        open_tiny(&rig, rig_precisions[p]);
        struct memory_plan plan = plan_of(&rig, &rig.config);
        cr_expect_eq(plan.master, 4 * ELEMENTS);
        bool split = rig_precisions[p] == CONFIG_PRECISION_BF16;
        cr_expect_eq(plan.lower, split ? 2 * VECTORS : lower ? 2 * COPIED : 0);
        cr_expect_eq(plan.gradients, 4 * ELEMENTS);
        cr_expect_eq(plan.moments, 8 * ELEMENTS);
        cr_expect_eq(plan.activations, model_bytes(stream) + 2 * layer_bytes(stream, true));
        if (rig.be.device
                .host_memory) /* inputs and targets, two slots each of the host and of the device */
            cr_expect_eq(plan.batches, 2 * 2 * 2 * COLUMN);
        rig.config.train.recompute = CONFIG_RECOMPUTE_GELU;
        cr_expect_eq(plan_of(&rig, &rig.config).activations,
                     model_bytes(stream) + layer_bytes(stream, true) + layer_bytes(stream, false));
        rig.config.train.recompute = CONFIG_RECOMPUTE_LAYER;
        cr_expect_eq(plan_of(&rig, &rig.config).activations,
                     model_bytes(stream) + layer_bytes(stream, true) + STREAM);
        rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
        cr_expect_eq(plan_of(&rig, &rig.config).gradients, (lower ? 2 : 4) * ELEMENTS);
        backend_close(&rig.be);
    }
}

/* ---- the largest micro-batch */

static int64_t largest(struct rig *rig, size_t memory) {
    int64_t batch = -7;
    cr_assert_eq(memory_largest_batch(&batch, &rig->config, &rig->be, memory, &rig->error), 0, "%s",
                 rig->error.text);
    return batch;
}

Test(memory_plan, largest_batch_fits_and_one_more_does_not) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t level = 0; level < COUNT(levels); level++) {
            struct rig rig = {0};
            open_tiny(&rig, rig_precisions[p]);
            rig.config.train.recompute = levels[level];
            for (size_t own = (size_t)10 << 20; own < (size_t)60 << 20; own = own * 5 / 3) {
                size_t memory = own + rig.be.device.library_bytes;
                int64_t batch = largest(&rig, memory);
                cr_assert_gt(batch, 0);
                cr_expect_leq(total_with_batch(&rig, batch), memory);
                cr_expect_gt(total_with_batch(&rig, batch + 1), memory);
            }
            backend_close(&rig.be);
        }
}

Test(memory_plan, largest_batch_to_the_byte) {
    struct rig rig = {0};
    open_tiny(&rig, CONFIG_PRECISION_FP16); /* whose workspace grows with the batch */
    struct memory_plan one = plan_of(&rig, &rig.config);
    size_t state = one.master + one.lower + one.gradients + one.moments;
    for (int64_t batch = 1; batch < 20; batch += 6) {
        cr_expect_eq(largest(&rig, total_with_batch(&rig, batch)), batch);
        cr_expect_eq(largest(&rig, total_with_batch(&rig, batch) - 1), batch - 1);
    }
    cr_expect_eq(largest(&rig, state), 0);
    cr_expect_eq(largest(&rig, state - 1), MEMORY_NO_STATE);
    cr_expect_eq(largest(&rig, 0), MEMORY_NO_STATE);
    rig.config.train.micro_batch_size = 1000; /* is not asked about */
    cr_expect_eq(largest(&rig, total_with_batch(&rig, 3)), 3);
    backend_close(&rig.be);
}

/* However much memory there is, a config has its limits; sizes do not overflow on the way. */
Test(memory_plan, largest_batch_is_one_that_a_config_may_have) {
    static const int64_t lengths[] = {32, 256, 257, 1 << 20};
    struct rig rig = {0};
    open_tiny(&rig, CONFIG_PRECISION_FP32);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        rig.config.data.seq_len = rig.config.model.n_positions = lengths[i];
        int64_t batch = largest(&rig, (size_t)1 << 62);
        cr_expect(memory_batch_allowed(&rig.config, batch));
        cr_expect_not(memory_batch_allowed(&rig.config, batch + 1));
        for (int more = 0; more < 2; more++) {
            struct config config = rig.config;
            char text[64], *overrides[] = {text};
            snprintf(text, sizeof text, "train.micro_batch_size=%d", (int)batch + more);
            cr_expect_eq(config_override(&config, "tiny", overrides, 1, &rig.error), -more,
                         "%s: %s", text, rig.error.text);
        }
    }
    cr_expect_not(memory_batch_allowed(&rig.config, 0));
    rig.config.model.n_layer = 1024;
    rig.config.model.n_embd = 65536;
    rig.config.model.n_head = 1024;
    cr_expect_eq(largest(&rig, (size_t)1 << 62), 16);
    backend_close(&rig.be);
}

/* ---- options */

Test(memory_plan, options_change_what_they_say) {
    struct config config;
    rig_config(&config, CONFIG_PRECISION_BF16);
    config.train.micro_batch_size = 15;
    cr_expect(memory_apply(&config, MEMORY_MICRO_BATCH, true));
    cr_expect_eq(config.train.micro_batch_size, 5);
    cr_expect_eq(config.train.grad_accum_steps, 6);
    cr_expect(memory_apply(&config, MEMORY_MICRO_BATCH, true));
    cr_expect_eq(config.train.micro_batch_size, 1);
    cr_expect_eq(config.train.grad_accum_steps, 30);
    cr_expect_not(memory_apply(&config, MEMORY_MICRO_BATCH, true));
    config.train.micro_batch_size = 2;
    config.train.grad_accum_steps = 40000; /* twice that is more than a config may have */
    cr_expect_not(memory_apply(&config, MEMORY_MICRO_BATCH, true));
    cr_expect_eq(config.train.micro_batch_size, 2);
    cr_expect(memory_apply(&config, MEMORY_RECOMPUTE_GELU, true));
    cr_expect_eq(config.train.recompute, CONFIG_RECOMPUTE_GELU);
    cr_expect_not(memory_apply(&config, MEMORY_RECOMPUTE_GELU, true));
    cr_expect(memory_apply(&config, MEMORY_RECOMPUTE_LAYER, true));
    cr_expect_not(memory_apply(&config, MEMORY_RECOMPUTE_GELU, true));
    cr_expect_eq(config.train.recompute, CONFIG_RECOMPUTE_LAYER);
    cr_expect_not(memory_apply(&config, MEMORY_GRADIENTS, false));
    cr_expect_not(memory_apply(&config, MEMORY_RESIDUAL, false));
    cr_expect_eq(config.gradients.dtype, CONFIG_DTYPE_FLOAT32);
    cr_expect(memory_apply(&config, MEMORY_GRADIENTS, true));
    cr_expect_not(memory_apply(&config, MEMORY_GRADIENTS, true));
    cr_expect_eq(config.gradients.dtype, CONFIG_DTYPE_LOWER);
    cr_expect_eq(config.autocast.residual, CONFIG_DTYPE_FLOAT32);
    cr_expect(memory_apply(&config, MEMORY_RESIDUAL, true));
    cr_expect_eq(config.autocast.residual, CONFIG_DTYPE_LOWER);
}

/* Multiply-adds of all that a walk passes. */
static double counted;

static void count_matmul(struct backend *be, const struct matmul_args *args) {
    double rows = (double)tensor_rows(args->a), columns = (double)tensor_columns(args->a);
    const struct tensor *b = args->b;
    (void)be;
    counted += rows * columns * (double)(args->transpose_b ? tensor_rows(b) : tensor_columns(b));
}

/* Half of the scores and half of their use. */
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

static double count(struct rig *rig, const struct config *config) {
    const struct operations *plan = rig->be.plan;
    struct operations counting = *plan;
    counting.matmul = count_matmul;
    counting.attention_forward = count_forward;
    counting.attention_backward = count_backward;
    counted = 0;
    rig->be.plan = &counting;
    plan_of(rig, config);
    rig->be.plan = plan;
    return counted;
}

Test(memory_plan, recomputed_part_is_what_a_walk_counts) {
    for (int variant = 0; variant < 4; variant++) {
        struct rig rig = {0};
        open_tiny(&rig, CONFIG_PRECISION_BF16);
        rig.config.model.n_layer = variant & 1 ? 5 : 1;
        if (variant & 2) rig.config.model.vocab_size = 1000;
        cr_expect_eq(memory_recomputed_part(&rig.config, &rig.be), 0);
        double all = count(&rig, &rig.config);
        for (int stored = 0; stored < 2; stored++)
            for (size_t level = 0; level < COUNT(levels); level++) {
                struct config config = rig.config;
                config.train.recompute = levels[level];
                rig.be.device.gelu_of_stored = stored;
                double again = count(&rig, &config) - all;
                double part = memory_recomputed_part(&config, &rig.be);
                cr_expect_lt(fabs(part - again / all), 1e-12, "%d %d %zu: %g, %g", variant, stored,
                             level, part, again / all);
            }
        backend_close(&rig.be);
    }
}

/* ---- advice */

/* All that can be advised, in order of preference: the first that fits is to be taken. */
static size_t list_candidates(struct config *list, const struct config *from, bool has_bf16) {
    size_t count = 0;
    for (int turn = 0; turn < 4; turn++) {
        struct config config = *from;
        bool starts_fp32 = from->precision == CONFIG_PRECISION_FP32;
        if (turn == 1 && !starts_fp32) continue;
        if (turn >= 1 && starts_fp32)
            config.precision = has_bf16 ? CONFIG_PRECISION_BF16 : CONFIG_PRECISION_FP16;
        if (turn >= 2) config.gradients.dtype = CONFIG_DTYPE_LOWER;
        if (turn >= 3) config.autocast.residual = CONFIG_DTYPE_LOWER;
        for (int64_t divisor = 1; divisor <= from->train.micro_batch_size; divisor++) {
            if (from->train.micro_batch_size % divisor) continue;
            config.train.micro_batch_size = from->train.micro_batch_size / divisor;
            config.train.grad_accum_steps = from->train.grad_accum_steps * divisor;
            for (int level = (int)from->train.recompute; level < 3; level++) {
                config.train.recompute = levels[level];
                list[count++] = config;
            }
        }
    }
    return count;
}

static void expect_config(const struct config *a, const struct config *b) {
    cr_expect_eq(a->precision, b->precision);
    cr_expect_eq(a->train.recompute, b->train.recompute);
    cr_expect_eq(a->train.micro_batch_size, b->train.micro_batch_size);
    cr_expect_eq(a->train.grad_accum_steps, b->train.grad_accum_steps);
    cr_expect_eq(a->gradients.dtype, b->gradients.dtype);
    cr_expect_eq(a->autocast.residual, b->autocast.residual);
}

/* What is to be pasted leads to the config that was advised. */
static void expect_flags(struct rig *rig, const struct memory_advice *advice) {
    struct config config = rig->config;
    char text[sizeof advice->flags], *overrides[16];
    int count = 0;
    strcpy(text, advice->flags);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        if (strcmp(word, "--set") != 0) overrides[count++] = word;
    cr_expect_gt(count, 0);
    cr_assert_eq(config_override(&config, "tiny", overrides, count, &rig->error), 0, "%s",
                 rig->error.text);
    expect_config(&config, &advice->config);
}

static enum memory_bits bits_between(const struct config *a, const struct config *b) {
    if (a->precision != b->precision || a->gradients.dtype != b->gradients.dtype ||
        a->autocast.residual != b->autocast.residual)
        return MEMORY_LESS_EXACT;
    return a->train.micro_batch_size == b->train.micro_batch_size ? MEMORY_SAME_BITS
                                                                  : MEMORY_OTHER_ORDER;
}

static void check_advice(struct rig *rig, enum config_recompute level) {
    static struct config list[72];
    static size_t totals[72];
    struct memory_advice advice;
    size_t least = SIZE_MAX, advised = 0;
    rig->config.train.recompute = level;
    size_t count = list_candidates(list, &rig->config, rig->be.device.computes[DTYPE_BF16]);
    for (size_t i = 0; i < count; i++) totals[i] = total_of(rig, &list[i]);
    for (size_t i = 1; i < count; i++) {
        size_t first = 0;
        while (totals[first] > totals[i]) first++;
        if (first == 0) continue; /* nothing needs to be changed */
        cr_assert_eq(memory_advise(&advice, &rig->config, &rig->be, totals[i], &rig->error), 0);
        expect_config(&advice.config, &list[first]);
        cr_expect_eq(advice.plan.total, totals[first]);
        cr_expect_eq(advice.bits, bits_between(&rig->config, &list[first]));
        expect_flags(rig, &advice);
        advised++;
    }
    for (size_t i = 0; i < count; i++) least = totals[i] < least ? totals[i] : least;
    cr_expect_gt(advised, 5);
    cr_expect_eq(memory_advise(&advice, &rig->config, &rig->be, least - 1, &rig->error),
                 RESULT_NONE);
}

Test(memory_plan, advice_is_the_first_change_that_fits) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t level = 0; level < COUNT(levels); level++) {
            struct rig rig = {0};
            open_tiny(&rig, rig_precisions[p]);
            rig.config.train.micro_batch_size = 12;
            check_advice(&rig, levels[level]);
            backend_close(&rig.be);
        }
}

Test(memory_plan, advice_in_flags) {
    struct rig rig = {0};
    struct memory_advice advice;
    open_tiny(&rig, CONFIG_PRECISION_BF16);
    rig.config.train.micro_batch_size = 8;
    struct config config = rig.config;
    config.train.recompute = CONFIG_RECOMPUTE_GELU;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, total_of(&rig, &config), &rig.error),
                 0);
    cr_expect_str_eq(advice.flags, "--set train.recompute=gelu");
    config = rig.config;
    config.train.recompute = CONFIG_RECOMPUTE_LAYER;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, total_of(&rig, &config), &rig.error),
                 0);
    cr_expect_str_eq(advice.flags, "--set train.recompute=layer");
    config.train.recompute = CONFIG_RECOMPUTE_GELU;
    config.train.micro_batch_size = 4;
    cr_assert_eq(memory_advise(&advice, &rig.config, &rig.be, total_of(&rig, &config), &rig.error),
                 0);
    cr_expect_str_eq(advice.flags, "--set train.recompute=gelu --set train.micro_batch_size=4 "
                                   "--set train.grad_accum_steps=2");
    backend_close(&rig.be);
}

/* ---- sizes */

Test(memory_plan, sizes_are_what_their_names_say) {
    static const double millions[MEMORY_SIZES] = {124, 355, 774, 1558, 6650, 12800, 29950, 64900};
    for (int i = 0; i < MEMORY_SIZES; i++) {
        struct config run, config;
        struct error message = {0};
        rig_config(&run, CONFIG_PRECISION_FP16);
        run.data.seq_len = i % 2 ? 4096 : 512;
        memory_size_config(&config, &memory_sizes[i], &run);
        double count = (double)config_parameter_count(&config) / 1e6;
        cr_expect_lt(fabs(count / millions[i] - 1), 0.01, "%s: %g", memory_sizes[i].name, count);
        cr_expect_eq(config_override(&config, "size", NULL, 0, &message), 0, "%s", message.text);
        cr_expect_eq(config.model.n_positions, i % 2 ? 4096 : 1024);
        cr_expect_eq(config.data.seq_len, run.data.seq_len);
        cr_expect_eq(config.train.micro_batch_size, 1);
        cr_expect_eq(config.model.vocab_size, 50257);
    }
}

/* No memory of a model is taken, so that the largest is as easy as the smallest. */
Test(memory_plan, the_largest_size_takes_no_memory) {
    struct rig rig = {0};
    struct config config;
    open_tiny(&rig, CONFIG_PRECISION_BF16);
    memory_size_config(&config, &memory_sizes[MEMORY_SIZES - 1], &rig.config);
    config.precision = CONFIG_PRECISION_BF16;
    size_t before = backend_peak_bytes(&rig.be);
    struct memory_plan plan = plan_of(&rig, &config);
    cr_expect_gt(plan.total, (size_t)900 << 30);
    rig.config = config;
    int64_t batch = largest(&rig, plan.total + ((size_t)64 << 30));
    cr_expect_gt(batch, 1);
    cr_expect_lt(backend_peak_bytes(&rig.be), before + ((size_t)256 << 20));
    backend_close(&rig.be);
}
