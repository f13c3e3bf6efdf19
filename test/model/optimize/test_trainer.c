/* A training step: equal sums for every split, repeated bits, and what evaluation and sampling
 * leave unchanged. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include "model/task/sample.h"

static const char *name_of(const struct rig *rig) {
    return config_precision_name(rig->config.precision);
}

/* Each family in every second precision. */
Test(trainer, training_lowers_the_loss) {
    for (int i = 0; i < (int)COUNT(rig_precisions) * FAMILIES; i++) {
        struct rig rig = {0};
        if ((i / FAMILIES + i % FAMILIES) % 2) continue;
        if (test_emulated() && i / FAMILIES % FAMILIES != i % FAMILIES) continue;
        rig_config(&rig.config, rig_precisions[i / FAMILIES]);
        set_family(&rig.config, i % FAMILIES);
        rig.config.train.steps = 60;
        rig_open(&rig, 1);
        float first = rig_step(&rig).loss;
        float last = rig_steps(&rig, 59).loss;
        const struct model_shape s = config_shape(&rig.config);
        cr_expect(fabsf(first - logf(RIG_VOCABULARY)) < 0.1f, "%s: %g", name_of(&rig), first);
        /* Gemma learns more slowly: norms leave the size of what its layers add. So does Arcee:
         * squares of small values are smaller, and so are their gradients; and Granite, whose
         * layers add a fifth. GLM-4 has Gemma's norms without its scale of the embeddings. */
        float less = s.rope_interleaved                  ? 0.25f
                     : s.post_norm || s.mlp == MLP_RELU2 ? 0.4f
                     : s.residual_multiplier > 0         ? 0.8f
                                                         : 1.0f;
        cr_expect_lt(last, first - less, "%s: from %g to %g", name_of(&rig), first, last);
        rig_close(&rig);
    }
}

Test(trainer, counts_steps_and_tokens) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.optimizer.warmup_steps = 4;
    rig_open(&rig, 1);
    for (int step = 1; step <= 5; step++) {
        struct step_report report = rig_step(&rig);
        cr_expect_eq(report.step, step);
        cr_expect_eq(report.tokens, step * 2 * 2 * RIG_LENGTH);
        cr_expect_eq(rig.trainer.state.step, step);
        cr_expect_eq(rig.trainer.state.tokens, report.tokens);
        cr_expect_eq(rig.trainer.state.scaler.updates, step);
        cr_expect_not(report.skipped);
        cr_expect_eq(report.loss_scale, 1);
        cr_expect(report.gradient_norm > 0);
        if (step <= 4) cr_expect_lt(fabs(report.lr - 3e-3 * step / 4), 1e-12);
    }
    rig_close(&rig);
}

/* Returns the gradients of one step for the given split of four sequences. */
static float *gradients_of(int64_t batch, int64_t micro_steps, struct step_report *report,
                           int64_t *count) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = batch;
    rig.config.train.grad_accum_steps = micro_steps;
    rig_open(&rig, 1);
    *report = rig_step(&rig);
    float *gradients = rig_floats(&rig.be, &rig.trainer.model.gradients);
    *count = rig.trainer.model.count;
    rig_close(&rig);
    return gradients;
}

/* Sums of four sequences in another order: a few units of 2^-24 of the largest gradient. */
Test(trainer, micro_batches_add_up_to_the_batch) {
    static const int splits[][2] = {{2, 2}, {1, 4}};
    struct step_report whole_report, report;
    int64_t count, other_count;
    float *whole = gradients_of(4, 1, &whole_report, &count), largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmaxf(largest, fabsf(whole[i]));
    for (size_t s = 0; s < COUNT(splits); s++) {
        float *parts = gradients_of(splits[s][0], splits[s][1], &report, &other_count), worst = 0;
        cr_assert_eq(count, other_count);
        for (int64_t i = 0; i < count; i++) worst = fmaxf(worst, fabsf(whole[i] - parts[i]));
        cr_expect_lt(worst, 16 * 0x1p-24f * largest, "%d x %d: %g of %g", splits[s][0],
                     splits[s][1], worst, largest);
        cr_expect_lt(fabsf(report.loss - whole_report.loss), 1e-6f);
        cr_expect_lt(fabsf(report.gradient_norm / whole_report.gradient_norm - 1), 1e-6f);
        cr_expect_eq(report.tokens, whole_report.tokens);
        free(parts);
    }
    cr_expect_gt(largest, 1e-3f);
    free(whole);
}

static struct digest train_digest(const struct config *config, int threads, float *loss) {
    struct rig rig = {0};
    rig.config = *config;
    rig_open(&rig, threads);
    *loss = rig_steps(&rig, 2).loss;
    cr_assert(isfinite(*loss));
    struct digest digest = rig_digest(&rig);
    rig_close(&rig);
    return digest;
}

/* A run repeats its bits with any thread count. Between counts oneDNN may split the sums of a
 * matmul differently, so there only the loss is compared. Two steps amplify the roundings of
 * 2^-24 (gradients are fp32 in every precision) only a little. */
static void check_threads(const struct config *config, const char *what) {
    float first = 0;
    int most = test_emulated() ? 1 : 3; /* the emulated GPU has one thread of the host */
    for (int threads = 1; threads <= most; threads++) {
        float loss, again;
        struct digest digest = train_digest(config, threads, &loss);
        struct digest repeated = train_digest(config, threads, &again);
        cr_expect_str_eq(repeated.hex, digest.hex, "%s, %s, %d threads: other bits", what,
                         config_precision_name(config->precision), threads);
        if (threads == 1) first = loss;
        cr_expect_lt(fabsf(loss - first), 1e-3f, "%s: loss %g, not %g", what, loss, first);
    }
}

Test(trainer, repeats_with_1_2_and_3_threads) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct config config;
        for (int family = 0; family < FAMILIES; family++) {
            if (test_leaves_out(p + (size_t)family)) continue;
            rig_config(&config, rig_precisions[p]);
            check_threads(&config, set_family(&config, family));
        }
    }
}

/* Sizes at which the library splits matmuls among threads. */
Test(trainer, repeats_with_1_2_and_3_threads_in_larger_products) {
    if (test_emulated()) cr_skip_test("the emulated GPU has one thread of the host");
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct config config;
        rig_config(&config, rig_precisions[p]);
        config.model.n_layer = 1;
        config.model.n_embd = 128;
        config.model.n_positions = config.data.seq_len = 128;
        config.model.vocab_size = 300;
        config.train.micro_batch_size = 4;
        config.train.grad_accum_steps = 1;
        check_threads(&config, "128 wide");
    }
}

/* The variants of autocast and gradients repeat and learn as well. */
static void check_variant(struct config *config, const char *what) {
    struct rig rig = {0};
    config->train.steps = 40;
    rig.config = *config;
    rig_open(&rig, 1);
    float first = rig_step(&rig).loss;
    float last = rig_steps(&rig, 39).loss;
    cr_expect_lt(last, first - 0.7f, "%s, %s: from %g to %g", what, name_of(&rig), first, last);
    cr_expect_eq(rig.trainer.state.scaler.skipped, 0, "%s, %s", what, name_of(&rig));
    struct digest once = rig_digest(&rig);
    rig_close(&rig);
    rig = (struct rig){.config = *config};
    rig_open(&rig, 1);
    rig_steps(&rig, 40);
    expect_same_digest(once, rig_digest(&rig), what);
    rig_close(&rig);
}

Test(trainer, residual_and_gradients_in_low_precision) {
    for (size_t p = 1; p < COUNT(rig_precisions); p++)
        for (int bits = 1; bits < 4; bits++) {
            struct config config;
            if (test_emulated() && bits - 1 != (int)p % 3) continue;
            rig_config(&config, rig_precisions[p]);
            if (bits & 1) config.autocast.residual = CONFIG_DTYPE_LOWER;
            if (bits & 2) config.gradients.dtype = CONFIG_DTYPE_LOWER;
            check_variant(&config, bits == 1 ? "residual" : bits == 2 ? "gradients" : "both");
        }
}

static int autocast_steps(void) {
    return test_emulated() ? 4 : 20;
}

/* Returns the loss after some steps with a list of operations kept in fp32. */
static float loss_with(enum config_precision precision, struct config_words words, bool enabled,
                       enum config_dtype residual) {
    struct rig rig = {0};
    rig_config(&rig.config, precision);
    rig.config.autocast.float32 = words;
    rig.config.autocast.enabled = enabled;
    rig.config.autocast.residual = residual;
    rig_open(&rig, 1);
    float loss = rig_steps(&rig, autocast_steps()).loss;
    cr_expect_str_eq(rig.be.failure.text, "");
    rig_close(&rig);
    return loss;
}

/* All stay near fp32: they differ from it only by roundings. */
Test(trainer, every_operation_can_be_kept_in_float32) {
    static const struct config_words lists[] = {
        {1, {"qkv"}},
        {1, {"attention"}},
        {1, {"attention_projection"}},
        {1, {"mlp_fc"}},
        {1, {"gelu"}},
        {1, {"mlp_projection"}},
        {1, {"lm_head"}},
        {2, {"lm_head", "attention"}},
        {2, {"qkv", "mlp_projection"}},
        {2, {"attention_projection", "mlp_projection"}},
        {7,
         {"qkv", "attention", "attention_projection", "mlp_fc", "gelu", "mlp_projection",
          "lm_head"}},
    };
    const struct config_words none = {0};
    float expected = loss_with(CONFIG_PRECISION_FP32, none, true, CONFIG_DTYPE_FLOAT32);
    for (size_t p = 1; p < COUNT(rig_precisions); p++)
        for (size_t i = 0; i < COUNT(lists); i++)
            for (int lower = 0; lower < 2; lower++) {
                if (test_leaves_out(p + i + (size_t)lower)) continue;
                float loss = loss_with(rig_precisions[p], lists[i], true, (enum config_dtype)lower);
                cr_expect_lt(fabsf(loss - expected), 0.02f, "%s, list %d, residual %d: %g, not %g",
                             config_precision_name(rig_precisions[p]), (int)i, lower, loss,
                             expected);
            }
}

Test(trainer, autocast_off_is_fp32_to_the_bit) {
    const struct config_words none = {0};
    float expected = loss_with(CONFIG_PRECISION_FP32, none, true, CONFIG_DTYPE_FLOAT32);
    for (size_t p = 1; p < COUNT(rig_precisions); p++)
        cr_expect_eq(loss_with(rig_precisions[p], none, false, CONFIG_DTYPE_LOWER), expected);
}

/* With everything listed as fp32, fp16 differs only by its loss scale, a power of two. */
Test(trainer, loss_scale_changes_no_bit_of_fp32_operations) {
    const struct config_words all = {7,
                                     {"qkv", "attention", "attention_projection", "mlp_fc", "gelu",
                                      "mlp_projection", "lm_head"}};
    const struct config_words none = {0};
    cr_expect_eq(loss_with(CONFIG_PRECISION_FP16, all, true, CONFIG_DTYPE_FLOAT32),
                 loss_with(CONFIG_PRECISION_FP32, none, true, CONFIG_DTYPE_FLOAT32));
}

Test(trainer, evaluation_changes_nothing_and_repeats) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0}, plain = {0};
        double first, second, one;
        rig_config(&rig.config, rig_precisions[p]);
        plain.config = rig.config;
        rig_open(&rig, 1);
        rig_open(&plain, 1);
        rig_steps(&rig, 2);
        rig_steps(&plain, 2);
        struct training_state state = rig.trainer.state;
        struct digest before = rig_digest(&rig);
        cr_assert_eq(trainer_evaluate(&rig.trainer, &first, &rig.loader, 10, &rig.error), 0);
        cr_assert_eq(trainer_evaluate(&rig.trainer, &second, &rig.loader, 10, &rig.error), 0);
        cr_expect_eq(first, second);
        cr_assert_eq(trainer_evaluate(&rig.trainer, &one, &rig.loader, 2, &rig.error), 0);
        cr_expect_neq(one, first);
        cr_expect_eq(memcmp(&state, &rig.trainer.state, sizeof state), 0);
        expect_same_digest(before, rig_digest(&rig), "evaluation");
        float loss = rig_steps(&rig, 2).loss;
        cr_expect_eq(loss, rig_steps(&plain, 2).loss, "%s", name_of(&rig));
        expect_same_digest(rig_digest(&rig), rig_digest(&plain), "steps after an evaluation");
        rig_close(&rig);
        rig_close(&plain);
    }
}

/* The mean over more sequences than the data has wraps around, exactly. */
Test(trainer, evaluation_is_the_mean_of_its_batches) {
    struct rig rig = {0};
    double all, total = 0;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    rig.loader.options.shuffle = false;
    int64_t sequences = (int64_t)rig.loader.sequence_count / 2 * 2;
    rig.loader.sequence_count = (uint64_t)sequences;
    cr_assert_eq(trainer_evaluate(&rig.trainer, &all, &rig.loader, sequences, &rig.error), 0);
    cr_assert_eq(trainer_evaluate(&rig.trainer, &total, &rig.loader, 2 * sequences, &rig.error), 0);
    cr_expect_lt(fabs(total - all), 1e-12);
    cr_expect_lt(fabs(all - log(RIG_VOCABULARY)), 0.1);
    rig_close(&rig);
}

Test(trainer, sampling_changes_nothing) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0}, plain = {0};
        const int32_t prompt[] = {1, 2, 3};
        struct sample_result result;
        rig_config(&rig.config, rig_precisions[p]);
        rig.config.sample.every = 1; /* so that sampling is planned */
        plain.config = rig.config;
        rig_open(&rig, 1);
        rig_open(&plain, 1);
        struct sample_options options = {
            .prompt = prompt, .prompt_length = 3, .tokens = 90, .temperature = 1, .top_p = 1};
        for (int step = 0; step < 3; step++) {
            cr_assert_eq(sample_tokens(&rig.trainer.model, &result, &options, &rig.error), 0);
            cr_expect_eq(result.tokens, 90);
            cr_expect_eq(rig_step(&rig).loss, rig_step(&plain).loss);
        }
        expect_same_digest(rig_digest(&rig), rig_digest(&plain), "sampling");
        rig_close(&rig);
        rig_close(&plain);
    }
}

Test(trainer, a_token_outside_the_vocabulary_stops_before_the_update) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    struct digest before = rig_digest(&rig);
    for (int i = 0; i < RIG_TOKENS; i += 20) rig.tokens.shards[0].owned[i] = 61;
    cr_expect_eq(trainer_begin_step(&rig.trainer, &rig.loader, &rig.error), -1);
    cr_expect_not_null(strstr(rig.error.text, "token 61"), "%s", rig.error.text);
    cr_expect_not_null(strstr(rig.error.text, "model.vocab_size"), "%s", rig.error.text);
    cr_expect_eq(rig.trainer.state.step, 0);
    expect_same_digest(before, rig_digest(&rig), "a failed step");
    rig_close(&rig);
}

/* The next step uses the restored loss scale and its count of finite steps. */
Test(trainer, restored_scaler_is_used) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    rig_open(&rig, 1);
    rig.trainer.state.scaler.loss_scale = 8;
    rig.trainer.state.scaler.growth_tracker = 1999;
    trainer_restore_scaler(&rig.trainer);
    struct step_report report = rig_step(&rig);
    cr_expect_eq(report.loss_scale, 8);
    cr_expect_eq(rig.trainer.state.scaler.loss_scale, 16, "growth after 2000 finite steps");
    cr_expect_eq(rig.trainer.state.scaler.growth_tracker, 0);
    rig_close(&rig);
}

/* Returns how far the first step moves a bias: lr wherever there is a gradient, as Adam's first
 * step does. */
static double first_move(double lr, int64_t warmup) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.optimizer.lr = lr;
    rig.config.optimizer.min_lr = 0;
    rig.config.optimizer.warmup_steps = warmup;
    rig.config.optimizer.eps = 1e-30;
    rig_open(&rig, 1);
    struct model *model = &rig.trainer.model;
    rig_step(&rig);
    float moved = 0;
    backend_download(&rig.be, &moved, model->weights.lnf_bias.data, sizeof moved);
    rig_close(&rig);
    return fabsf(moved);
}

Test(trainer, the_learning_rate_of_the_schedule_is_applied) {
    cr_expect_lt(fabs(first_move(1e-3, 0) / 1e-3 - 1), 1e-5);
    cr_expect_lt(fabs(first_move(4e-3, 0) / 4e-3 - 1), 1e-5);
    cr_expect_lt(fabs(first_move(4e-3, 8) / 5e-4 - 1), 1e-5);
    cr_expect_eq(first_move(0, 0), 0);
}

/* Without clipping, a step equals one with a limit that is out of reach; the norm is the same. */
Test(trainer, clipping_bounds_the_norm_that_is_used) {
    float losses[3], norms[3];
    static const double clips[] = {0, 1e6, 1e-3};
    for (int i = 0; i < 3; i++) {
        struct rig rig = {0};
        rig_config(&rig.config, CONFIG_PRECISION_FP32);
        rig.config.optimizer.grad_clip = clips[i];
        rig.config.optimizer.eps = 1e-3; /* so that the magnitude of gradients matters */
        rig_open(&rig, 1);
        norms[i] = rig_step(&rig).gradient_norm;
        losses[i] = rig_steps(&rig, 5).loss;
        rig_close(&rig);
    }
    cr_expect_eq(norms[0], norms[1]);
    cr_expect_eq(norms[0], norms[2]);
    cr_expect_eq(losses[0], losses[1]);
    cr_expect_gt(losses[2], losses[0]);
}

static size_t offered; /* available bytes that a device reports */

static size_t offer(struct backend *be) {
    (void)be;
    return offered;
}

/* Memory for the whole plan is checked before any of it is allocated. */
Test(trainer, memory_is_checked_before_allocation) {
    for (int variant = 0; variant < 2; variant++) {
        struct rig rig = {0};
        rig_config(&rig.config, CONFIG_PRECISION_FP16);
        rig_open_backend(&rig, test_device(), 1);
        struct device_functions functions = *rig.be.functions;
        functions.available = offer;
        rig.be.functions = &functions;
        cr_assert_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                  TRAINER_PLANNED, &rig.error),
                     0);
        cr_expect_gt(rig.trainer.model.memory.batches, 0);
        offered = memory_total(&rig.trainer.model.memory) - (variant ? 1 : 0);
        trainer_close(&rig.trainer);
        int status = trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                  TRAINER_INITIALIZED, &rig.error);
        cr_expect_eq(status, variant ? -1 : 0);
        if (variant) {
            cr_expect_not_null(strstr(rig.error.text, "not enough memory"), "%s", rig.error.text);
            cr_expect_not_null(strstr(rig.error.text, "train.micro_batch_size"), "%s",
                               rig.error.text);
            cr_expect_null(rig.be.workspace);
            cr_expect_null(rig.trainer.results);
        }
        trainer_close(&rig.trainer);
        backend_close(&rig.be);
    }
}

/* Returns how far the first step moves a parameter, with the weights of a matrix or of wpe. */
static double movement(double adamw_lr, int layer) {
    struct rig rig = {0};
    double sum = 0;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.optimizer.name = CONFIG_OPTIMIZER_MUON;
    rig.config.optimizer.adamw_lr = adamw_lr;
    rig.config.optimizer.weight_decay = 0;
    rig_open(&rig, 1);
    const struct model *model = &rig.trainer.model;
    float *before = masters_values(model);
    rig_step(&rig);
    float *after = masters_values(model);
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        const struct parameter *p = &model->list[i];
        if (p->extent.columns == 0 || (layer >= 0) != (p->layer >= 0)) continue;
        for (int64_t k = p->offset; k < p->offset + parameter_count(p); k++)
            sum += fabs((double)after[k] - (double)before[k]);
    }
    free(before);
    free(after);
    rig_close(&rig);
    return sum;
}

/* adamw_lr is the rate of what AdamW updates: in proportion to lr, in its warm-up too. */
Test(trainer, muon_has_two_learning_rates) {
    double embeddings = movement(0, -1), matrices = movement(0, 0);
    cr_expect_float_eq(movement(6e-3, -1) / embeddings, 2, 1e-3);
    cr_expect_eq(movement(6e-3, 0), matrices);
}
