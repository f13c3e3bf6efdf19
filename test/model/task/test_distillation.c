/* Training on the stored logits of a teacher, against PyTorch and in other splits of a batch. */
#include <stdio.h>

#include "model/config/config_check.h"
#include "test/data/corpus/teacher_fixture.h"
#include "test/model/trainer_fixture.h"
#include "test/ranks_world.h"
#include "test/safetensors_find.h"

TestSuite(distilled_training, .init = make_folder, .fini = remove_folder);

enum { GOLDEN_STEPS = 10, GOLDEN_LENGTH = 16, GOLDEN_TOKENS = 641, GOLDEN_TOP = 5 };

static const char golden_path[] = "test/golden/gpt_distilled.safetensors";

/* Returns a tensor of a fixture, to be freed. */
static void *read_golden(const char *path, const char *name) {
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, path, &error));
    const struct safetensors_entry *entry = safetensors_find(&file, name);
    cr_assert_not_null(entry, "no %s in %s", name, path);
    void *data = safetensors_data(&file, entry);
    cr_assert_not_null(data);
    safetensors_close(&file);
    return data;
}

/* Opens the teacher of the rig's only shard, from fp32 logits. */
static void open_teacher(struct rig *rig, struct teacher_logits *teacher, int64_t top,
                         const int32_t *tokens, const float *logits) {
    const struct config *config = &rig->config;
    const size_t count = (size_t)(rig->tokens.count - 1) * (size_t)top;
    uint16_t *narrow = malloc(count * sizeof *narrow);
    dtype_store(narrow, DTYPE_F16, 0, logits, count);
    write_teacher(&rig->tokens.shards[0], top, config->model.vocab_size, config->data.seq_len,
                  false, tokens, narrow);
    SUCCEEDS(teacher_open(teacher, folder, &rig->tokens, config->model.vocab_size,
                          config->data.seq_len, false, &error));
    rig->loader.teacher = teacher;
    rig->config.distill_top = teacher->header.top;
    free(narrow);
}

static void open_trainer(struct rig *rig) {
    rig_open_backend(rig, test_device(), 2);
    SUCCEEDS(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                          TRAINER_INITIALIZED, &error));
}

static void upload_golden_weights(struct rig *rig) {
    struct model *model = &rig->trainer.model;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        char name[128];
        snprintf(name, sizeof name, "initial.transformer.%s", model->list[i].name);
        float *values = read_golden("test/golden/gpt_fp32.safetensors", name);
        masters_upload(&model->masters, &rig->be, values, model->list[i].offset,
                       parameter_count(&model->list[i]));
        free(values);
    }
    masters_refresh(&model->masters, &rig->be);
}

/* The settings of make_golden.py. */
static void golden_config(struct config *config, enum config_precision precision) {
    rig_config(config, precision);
    config->model.n_positions = config->data.seq_len = GOLDEN_LENGTH;
    config->masked_share = 0.5; /* so that the head reads the rows that count alone */
    config->distill.alpha = 0.7;
    config->distill.temperature = 2;
    config->train.steps = GOLDEN_STEPS;
    config->optimizer.lr = 1e-3;
    config->optimizer.schedule = CONFIG_SCHEDULE_CONSTANT;
    config->optimizer.warmup_steps = 0;
    config->optimizer.weight_decay = 0.1;
}

/* Returns the fixture's text, with a mask of the tokens that count. */
static struct tokens golden_text(uint8_t mask[GOLDEN_TOKENS / 8 + 1]) {
    struct tokens text;
    int32_t *tokens = read_golden(golden_path, "tokens");
    int32_t *counts = read_golden(golden_path, "counts");
    memset(mask, 0, GOLDEN_TOKENS / 8 + 1);
    for (int i = 0; i < GOLDEN_TOKENS; i++) mask[i / 8] |= (uint8_t)(counts[i] << i % 8);
    free(counts);
    SUCCEEDS(tokens_from_memory(&text, tokens, GOLDEN_TOKENS, "text", &error));
    text.shards[0].mask.bits = mask;
    return text;
}

/* Ten steps of PyTorch. In fp32 the two differ by roundings of sums, in bf16 by those of
 * activations as gpt_golden's runs do. */
static void check_golden(enum config_precision precision, const char *name, double loss,
                         double norm) {
    struct rig rig = {0};
    struct teacher_logits teacher;
    uint8_t mask[GOLDEN_TOKENS / 8 + 1];
    char key[64];
    golden_config(&rig.config, precision);
    rig_open_data(&rig);
    struct tokens text = golden_text(mask);
    rig_use_shards(&rig, &text);
    int32_t *tokens = read_golden(golden_path, "teacher_tokens");
    float *logits = read_golden(golden_path, "teacher_logits");
    open_teacher(&rig, &teacher, GOLDEN_TOP, tokens, logits);
    open_trainer(&rig);
    upload_golden_weights(&rig);
    snprintf(key, sizeof key, "%s.loss", name);
    float *losses = read_golden(golden_path, key);
    snprintf(key, sizeof key, "%s.gradient_norm", name);
    float *norms = read_golden(golden_path, key);
    for (int i = 0; i < GOLDEN_STEPS; i++) {
        const struct step_report report = rig_step(&rig);
        const double loss_error = fabs(report.loss - losses[i]);
        const double norm_error = fabs(report.gradient_norm / norms[i] - 1);
        if (getenv("CHECK_VERBOSE")) fprintf(stderr, "%s %g %g\n", name, loss_error, norm_error);
        cr_expect(loss_error <= loss, "step %d: loss %.7g, PyTorch's %.7g", i, report.loss,
                  losses[i]);
        cr_expect(norm_error <= norm, "step %d: norm %.7g, PyTorch's %.7g", i, report.gradient_norm,
                  norms[i]);
    }
    free(tokens), free(logits), free(losses), free(norms);
    rig_close(&rig);
    teacher_close(&teacher);
}

Test(distilled_training, golden_fp32) {
    check_golden(CONFIG_PRECISION_FP32, "fp32", 5e-6, 2e-6);
}

Test(distilled_training, golden_bf16) {
    check_golden(CONFIG_PRECISION_BF16, "bf16", 3e-3, 5e-3);
}

enum { TOP = 4 };

/* A teacher of the rig's text: 3 last + 1, the likely token, before three others. */
static void make_teacher(struct rig *rig, struct teacher_logits *teacher) {
    const uint64_t count = rig->tokens.count - 1;
    int32_t *tokens = malloc(count * TOP * sizeof *tokens);
    float *logits = malloc(count * TOP * sizeof *logits);
    for (uint64_t i = 0; i < count; i++) {
        int32_t last;
        SUCCEEDS(token_shard_read(&rig->tokens.shards[0], &last, i, 1, &error));
        const int32_t likely = (last * 3 + 1) % RIG_VOCABULARY;
        const int32_t first = likely < RIG_VOCABULARY - TOP ? likely : RIG_VOCABULARY - TOP;
        for (int k = 0; k < TOP; k++) {
            tokens[i * TOP + (uint64_t)k] = first + k;
            logits[i * TOP + (uint64_t)k] = first + k == likely ? 0 : -3.0f - (float)k;
        }
    }
    open_teacher(rig, teacher, TOP, tokens, logits);
    free(tokens), free(logits);
}

static void open_student(struct rig *rig, struct teacher_logits *teacher, double alpha) {
    rig->config.distill.alpha = alpha;
    rig->config.distill.temperature = 1;
    rig_open_data(rig);
    make_teacher(rig, teacher);
    open_trainer(rig);
}

/* Gradients of the first step, for a split of four sequences. */
static float *gradients_of(int64_t batch, int64_t micros, struct step_report *report,
                           int64_t *count) {
    struct rig rig = {0};
    struct teacher_logits teacher;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = batch;
    rig.config.train.grad_accum_steps = micros;
    open_student(&rig, &teacher, 0.5);
    *report = rig_step(&rig);
    *count = rig.trainer.model.trained_count;
    float *gradients = rig_floats(&rig.be, &rig.trainer.model.gradients);
    rig_close(&rig);
    teacher_close(&teacher);
    return gradients;
}

/* Micro-batches get their own rows of the teacher. Sums in another order: some units of 2^-24 of
 * the largest gradient. */
Test(distilled_training, micro_batches_add_up_to_the_batch) {
    struct step_report whole_report, report;
    int64_t count;
    float *whole = gradients_of(4, 1, &whole_report, &count), largest = 0, worst = 0;
    float *parts = gradients_of(1, 4, &report, &count);
    for (int64_t i = 0; i < count; i++) {
        largest = fmaxf(largest, fabsf(whole[i]));
        worst = fmaxf(worst, fabsf(whole[i] - parts[i]));
    }
    cr_expect_gt(largest, 1e-3f);
    cr_expect_lt(worst, 16 * 0x1p-24f * largest, "%g of %g", worst, largest);
    cr_expect_lt(fabsf(report.loss - whole_report.loss), 1e-6f);
    free(whole), free(parts);
}

/* Logits in several chunks of rows, and in one. */
Test(distilled_training, chunks_of_logits_read_their_rows) {
    struct step_report reports[2];
    for (int i = 0; i < 2; i++) {
        struct rig rig = {0};
        struct teacher_logits teacher;
        rig_config(&rig.config, CONFIG_PRECISION_FP32);
        rig.config.train.micro_batch_size = 8;
        open_student(&rig, &teacher, 0.5);
        if (i == 1) rig.trainer.model.shape.logit_rows = 64;
        cr_assert_eq(rig.trainer.model.shape.logit_rows, i == 1 ? 64 : 8 * RIG_LENGTH);
        reports[i] = rig_step(&rig);
        rig_close(&rig);
        teacher_close(&teacher);
    }
    cr_expect_float_eq(reports[0].loss, reports[1].loss, 1e-6);
    cr_expect_float_eq(reports[0].gradient_norm, reports[1].gradient_norm, 1e-6);
}

/* In each precision the loss falls, and validation is the cross entropy of a run without teacher.
 */
Test(distilled_training, each_precision_learns) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++) {
        struct rig rig = {0}, plain = {0};
        struct teacher_logits teacher;
        double loss, expected;
        rig_config(&rig.config, rig_precisions[i]);
        rig_config(&plain.config, rig_precisions[i]);
        open_student(&rig, &teacher, 0.9);
        rig_open(&plain, 2);
        rig.loader.teacher = NULL; /* as that of validation */
        SUCCEEDS(trainer_evaluate(&rig.trainer, &loss, &rig.loader, 8, &error));
        SUCCEEDS(trainer_evaluate(&plain.trainer, &expected, &plain.loader, 8, &error));
        cr_expect_eq(loss, expected);
        rig.loader.teacher = &teacher;
        const float first = rig_step(&rig).loss, last = rig_steps(&rig, 14).loss;
        cr_expect_lt(last, 0.9f * first, "%s: %g, then %g",
                     config_precision_name(rig_precisions[i]), first, last);
        rig_close(&plain);
        rig_close(&rig);
        teacher_close(&teacher);
    }
}

/* The plan has the teacher's rows of every batch, on the host too where that is the device. */
Test(distilled_training, memory_is_planned) {
    struct rig rig = {0}, plain = {0};
    struct teacher_logits teacher;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_config(&plain.config, CONFIG_PRECISION_FP32);
    open_student(&rig, &teacher, 0.5);
    rig_open(&plain, 2);
    const size_t slots = (size_t)(rig.be.device.host_memory ? 2 : 1) * BACKEND_SLOTS;
    const size_t bytes = slots * 2 * RIG_LENGTH * TOP * (4 + 2);
    const size_t more = rig.trainer.model.memory.batches - plain.trainer.model.memory.batches;
    cr_expect(more >= bytes && more < bytes + slots * 512, "%zu, not %zu", more, bytes);
    cr_expect_eq(rig.trainer.model.memory.batches, batches_bytes(&rig.trainer.batches));
    rig_close(&plain);
    rig_close(&rig);
    teacher_close(&teacher);
}

/* With alpha 0 a step is one of a run without teacher. */
Test(distilled_training, alpha_0_is_training_on_the_data) {
    struct rig rig = {0}, plain = {0};
    struct teacher_logits teacher;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_config(&plain.config, CONFIG_PRECISION_FP32);
    open_student(&rig, &teacher, 0);
    rig_open(&plain, 2);
    for (int i = 0; i < 3; i++) {
        const struct step_report a = rig_step(&rig), b = rig_step(&plain);
        cr_expect_float_eq(a.loss, b.loss, 2e-6);
        cr_expect_float_eq(a.gradient_norm, b.gradient_norm, 2e-6);
    }
    rig_close(&plain);
    rig_close(&rig);
    teacher_close(&teacher);
}

/* The tokens that the rig's text draws from, all of them: one is likely, the others are not. */
static void make_source(struct rig *rig, struct teacher_logits *teacher) {
    const uint64_t count = rig->tokens.count - 1;
    int32_t *tokens = malloc(count * RIG_VOCABULARY * sizeof *tokens);
    float *logits = malloc(count * RIG_VOCABULARY * sizeof *logits);
    for (uint64_t i = 0; i < count; i++) {
        int32_t last;
        SUCCEEDS(token_shard_read(&rig->tokens.shards[0], &last, i, 1, &error));
        for (int v = 0; v < RIG_VOCABULARY; v++) {
            const double p = 0.2 / RIG_VOCABULARY, likely = 0.8 + p;
            tokens[i * RIG_VOCABULARY + (uint64_t)v] = v;
            logits[i * RIG_VOCABULARY + (uint64_t)v] =
                v == (last * 3 + 1) % RIG_VOCABULARY ? 0 : (float)log(p / likely);
        }
    }
    open_teacher(rig, teacher, RIG_VOCABULARY, tokens, logits);
    free(tokens), free(logits);
}

/* A teacher that is the source of the text has no noise, which a student would otherwise learn:
 * after as many steps its cross entropy was 0.165 lower (2.616 and 2.782); half of that must
 * remain. */
Test(distilled_training, the_source_as_teacher_is_learned_faster) {
    enum { TRAINING_STEPS = 60 };
    double losses[2];
    for (int taught = 0; taught < 2; taught++) {
        struct rig rig = {0};
        struct teacher_logits teacher = {0};
        rig_config(&rig.config, CONFIG_PRECISION_FP32);
        rig.config.train.steps = TRAINING_STEPS;
        rig.config.distill.alpha = 1;
        rig_open_data(&rig);
        if (taught) make_source(&rig, &teacher);
        open_trainer(&rig);
        rig_steps(&rig, TRAINING_STEPS);
        SUCCEEDS(trainer_evaluate(&rig.trainer, &losses[taught], &rig.loader,
                                  (int64_t)rig.loader.sequence_count, &error));
        rig_close(&rig);
        teacher_close(&teacher);
    }
    cr_expect_lt(losses[1], losses[0] - 0.08, "%g, and %g alone", losses[1], losses[0]);
}

enum { RANK_STEPS = 4, RANK_SAMPLES = 12 };

/* Steps of all ranks on the files in the test's folder. */
struct shared {
    float losses[WORLD_RANKS_MAX][RANK_STEPS];
};

static void train_rank(const struct ranks *ranks, void *argument) {
    struct shared *shared = argument;
    struct rig rig = {0};
    struct teacher_logits teacher;
    struct error *reason = &rig.error;
    const struct backend_options options = {.device = DEVICE_CPU, .threads = 1, .ranks = ranks};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.train.micro_batch_size = 1;
    rig.config.train.batch_tokens = RANK_SAMPLES * RIG_LENGTH;
    rig.config.distill_top = TOP;
    world_requires(config_split_batch(&rig.config, ranks->size, reason) == 0, reason->text);
    rig_open_data(&rig);
    world_requires(
        teacher_open(&teacher, folder, &rig.tokens, RIG_VOCABULARY, RIG_LENGTH, false, reason) == 0,
        reason->text);
    rig.loader.teacher = &teacher;
    world_requires(backend_open(&rig.be, &options, reason) == 0, reason->text);
    world_requires(precision_resolve(&rig.precision, NULL, &rig.config, &rig.be, reason) == 0,
                   reason->text);
    world_requires(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                                TRAINER_INITIALIZED, reason) == 0,
                   reason->text);
    for (int i = 0; i < RANK_STEPS; i++) shared->losses[ranks->rank][i] = rig_step(&rig).loss;
    trainer_wait_for_weights(&rig.trainer);
    rig_close(&rig);
    teacher_close(&teacher);
}

/* Each rank reads the teacher of its own samples. */
Test(distilled_training, ranks_match_one_rank) {
    struct rig rig = {0};
    struct teacher_logits teacher;
    struct shared one = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open_data(&rig);
    make_teacher(&rig, &teacher);
    world_run(1, 4096, true, train_rank, &one);
    for (int size = 2; size <= 3; size++) {
        struct shared many = {0};
        world_run(size, 4096, true, train_rank, &many);
        for (int rank = 0; rank < size; rank++)
            for (int i = 0; i < RANK_STEPS; i++)
                cr_expect_float_eq(many.losses[rank][i], one.losses[0][i], 5e-6,
                                   "rank %d of %d, step %d: %.9g, alone %.9g", rank, size, i,
                                   many.losses[rank][i], one.losses[0][i]);
    }
    teacher_close(&teacher);
    loader_close(&rig.loader);
    tokens_close(&rig.tokens);
}
