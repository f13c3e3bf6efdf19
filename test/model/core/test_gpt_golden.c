/* A whole GPT compared with PyTorch: ten steps of two micro-batches, in each precision, with the
 * loss scaler forced through overflow, backoff, skipped steps and growth. See
 * test/golden/fixtures.md. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/open/backend_open.h"
#include "model/pass/forward.h"
#include "test/device.h"
#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_cublaslt.h"
#endif
#include "test/model/core/gpt_golden_bounds.h"

enum { SEQUENCES = STEPS * MICRO_BATCHES * BATCH };

struct setup {
    const struct bounds *bounds;
    struct fixture file, base; /* base: empty if not used */
    struct config config;
    struct backend be;
    struct tokens tokens;
    int length; /* tokens of a sequence */
    uint8_t masks[SEQUENCES][LENGTH / 8 + 1], starts[SEQUENCES][LENGTH / 8 + 1];
    struct loader loader;
    struct trainer trainer;
    struct error error;
    double logits, gradients; /* largest differences found, as in struct bounds */
};

static const void *find(const struct setup *s, const char *name, enum safetensors_dtype dtype) {
    const void *data = data_in(&s->file, name, dtype);
    if (!data && s->bounds->base) data = data_in(&s->base, name, dtype);
    cr_assert(data, "%s lacks %s", s->bounds->fixture, name);
    return data;
}

static const float *floats(struct setup *s, const char *name) {
    return find(s, name, SAFETENSORS_F32);
}

/* Packs the flags of sequence i, if the fixture has them, into bits. Returns these, or NULL. */
static const uint8_t *pack_bits(uint8_t bits[LENGTH / 8 + 1], const int32_t *flags, int i) {
    for (int t = 0; flags && t <= LENGTH; t++)
        bits[t / 8] |= (uint8_t)(flags[i * (LENGTH + 1) + t] << t % 8);
    return flags ? bits : NULL;
}

/* Each sequence is a shard of its own: they do not continue one another. */
static void make_tokens(struct setup *s) {
    const int32_t *given = find(s, "tokens", SAFETENSORS_I32);
    const int32_t *counts = data_in(&s->file, "counts", SAFETENSORS_I32);
    const int32_t *starts = data_in(&s->file, "starts", SAFETENSORS_I32);
    s->config.data.isolate = starts != NULL;
    for (int i = 0; i < SEQUENCES; i++) {
        int count = s->length + 1;
        int32_t *owned = malloc((size_t)count * sizeof *owned);
        for (int t = 0; t < count; t++) owned[t] = given[i * count + t];
        struct token_shard shard = {
            .name = strdup("fixture"), .count = (uint64_t)count, .owned = owned};
        shard.mask.bits = pack_bits(s->masks[i], counts, i);
        shard.mask.starts = pack_bits(s->starts[i], starts, i);
        arrput(s->tokens.shards, shard);
        s->tokens.count += shard.count;
    }
}

/* Recipes as in RECIPES of make_golden.py. */
static void make_recipe(struct config *config, const char *recipe) {
    if (strstr(recipe, "delayed")) config->fp8.recipe = CONFIG_RECIPE_DELAYED;
    if (strstr(recipe, "block")) config->fp8.recipe = CONFIG_RECIPE_BLOCK;
    if (strstr(recipe, "row")) config->fp8.recipe = CONFIG_RECIPE_ROW;
    if (strstr(recipe, "e4m3")) config->fp8.format = CONFIG_FORMAT_E4M3;
    config->fp8.power_of_two = strcmp(recipe, "e4m3") == 0;
    config->fp8.amax_history_length = 3;
    config->fp8.margin = 1;
}

/* Optimizers as in optimizers.py, by the name of the fixture. */
static void make_optimizer(struct config *config, const char *fixture) {
    const struct config_option *option = config_option_of("optimizer.name");
    const bool bf16 = strstr(fixture, "_muon_bf16") != NULL;
    for (int i = 0; option->names[i]; i++) {
        char part[32];
        snprintf(part, sizeof part, "_%s", option->names[i]);
        if (strstr(fixture, part)) config->optimizer.name = (enum config_optimizer)i;
    }
    config->optimizer.momentum = 0.95;
    config->optimizer.newton_schulz_dtype =
        bf16 ? CONFIG_NEWTON_SCHULZ_BF16 : CONFIG_NEWTON_SCHULZ_F32;
    config->optimizer.scale = bf16 ? CONFIG_SCALE_ORIGINAL : CONFIG_SCALE_MATCH_RMS_ADAMW;
}

static void make_config(struct config *config, const struct bounds *bounds) {
    config_defaults(config);
    make_optimizer(config, bounds->fixture);
    config->precision = bounds->precision;
    make_model(config, bounds->family);
    make_rope(config, bounds->fixture);
    if (bounds->lora) {
        make_lora_sizes(config);
        make_lora(config, bounds->lora);
    }
    if (bounds->recipe) make_recipe(config, bounds->recipe);
    config->data.seq_len = bounds->lora ? LORA_LENGTH : LENGTH;
    make_training(config);
}

static void open_setup(struct setup *s, const struct bounds *bounds) {
    struct precision precision;
    memset(s, 0, sizeof *s);
    s->bounds = bounds;
    s->length = bounds->lora ? LORA_LENGTH : LENGTH;
    fixture_open(&s->file, bounds->fixture);
    if (bounds->base) fixture_open(&s->base, bounds->base);
    make_config(&s->config, bounds);
    make_tokens(s);
    struct loader_options options = {.seq_len = s->length, .vocab_size = VOCABULARY};
    cr_assert_eq(loader_open(&s->loader, &s->tokens, &options, &s->error), 0, "%s", s->error.text);
    cr_assert_eq(backend_open(&s->be, &(const struct backend_options){test_device(), .threads = 2},
                              &s->error),
                 0, "%s", s->error.text);
    cr_assert_eq(precision_resolve(&precision, NULL, &s->config, &s->be, &s->error), 0);
    cr_assert_eq(
        trainer_open(&s->trainer, &s->config, &precision, &s->be, TRAINER_INITIALIZED, &s->error),
        0, "%s", s->error.text);
    struct model *model = &s->trainer.model;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        char name[NAME_MAX_BYTES];
        name_in_fixture(name, s->bounds->family, "initial", &model->list[i]);
        masters_upload(&model->masters, &s->be, floats(s, name), model->list[i].offset,
                       parameter_count(&model->list[i]));
    }
    masters_refresh(&model->masters, &s->be);
}

static void close_setup(struct setup *s) {
    trainer_close(&s->trainer);
    backend_close(&s->be);
    loader_close(&s->loader);
    tokens_close(&s->tokens);
    fixture_close(&s->file);
    fixture_close(&s->base);
}

static void expect_within(const struct setup *s, const char *what, double got, double bound) {
    if (verbose()) fprintf(stderr, "%s %s: %.3g of %.3g\n", s->bounds->fixture, what, got, bound);
    cr_expect(got <= bound, "%s: %s differs by %g, allowed %g", s->bounds->fixture, what, got,
              bound);
}

static void check_gradients(struct setup *s, double loss_scale) {
    struct model *model = &s->trainer.model;
    for (ptrdiff_t i = 0; i < parameter_trained_count(model->list); i++) {
        char name[NAME_MAX_BYTES];
        name_in_fixture(name, s->bounds->family, "gradient", &model->list[i]);
        const float *expected = floats(s, name);
        struct tensor view = model_gradient(model, &model->list[i]);
        int64_t count = tensor_count(&view);
        float *got = values_of(&s->be, &view);
        double error = distance(got, 1 / loss_scale, expected, count);
        free(got);
        error /= norm_of(expected, count);
        if (!(error <= s->gradients)) s->gradients = error;
        expect_within(s, name, error, s->bounds->gradient);
    }
}

static void check_final_weights(struct setup *s) {
    struct model *model = &s->trainer.model;
    double difference = 0, movement = 0;
    for (ptrdiff_t i = 0; i < parameter_trained_count(model->list); i++) {
        char name[NAME_MAX_BYTES];
        name_in_fixture(name, s->bounds->family, "final", &model->list[i]);
        const float *final = floats(s, name);
        name_in_fixture(name, s->bounds->family, "initial", &model->list[i]);
        const float *initial = floats(s, name);
        int64_t count = parameter_count(&model->list[i]), third = count / 3;
        /* GPT-2's key biases do not affect softmax: their gradient is rounding noise, which Adam
         * turns into full steps of random sign. Only queries and values are compared. */
        float *got = malloc((size_t)count * sizeof *got);
        masters_download(&model->masters, &s->be, got, model->list[i].offset, count);
        bool qkv_bias = strstr(name, "c_attn.bias") != NULL;
        for (int64_t first = 0; first < count; first += qkv_bias ? 2 * third : count) {
            int64_t part = qkv_bias ? third : count;
            difference += pow(distance(got + first, 1, final + first, part), 2);
            movement += pow(distance(initial + first, 1, final + first, part), 2);
        }
        free(got);
    }
    expect_within(s, "final weights", sqrt(difference / movement), s->bounds->movement);
}

static void check_steps(struct setup *s) {
    const float *losses = floats(s, "loss"), *norms = floats(s, "gradient_norm");
    const float *scales = floats(s, "loss_scale");
    const int32_t *skipped = find(s, "skipped", SAFETENSORS_I32);
    for (int step = 0; step < STEPS; step++) {
        struct step_report report;
        cr_assert_eq(trainer_begin_step(&s->trainer, &s->loader, &s->error), 0, "%s",
                     s->error.text);
        cr_assert_eq(trainer_end_step(&s->trainer, &report, &s->error), 0, "%s", s->error.text);
        if (step == 0) check_gradients(s, report.loss_scale);
        expect_within(s, "loss", fabs(report.loss - losses[step]), s->bounds->loss);
        cr_expect_eq(report.skipped, skipped[step], "step %d", step);
        cr_expect_eq(s->trainer.state.scaler.loss_scale, scales[step], "step %d: scale %g", step,
                     s->trainer.state.scaler.loss_scale);
        if (!skipped[step])
            expect_within(s, "norm", fabs(report.gradient_norm / norms[step] - 1), s->bounds->norm);
    }
}

static void check_logits(struct setup *s) {
    struct model *model = &s->trainer.model;
    const float *expected = floats(s, "logits");
    const struct step_inputs inputs = {0};
    cr_assert_eq(
        batches_put(&s->trainer.batches, &s->loader, 0, model->shape.batch, &inputs, &s->error), 0);
    const struct pass pass = batches_pass(&s->trainer.batches, model, PASS_EVALUATE);
    int rows = BATCH * s->length;
    model_forward(&pass);
    double worst = 0, largest = 0;
    for (int row = 0; row < rows; row++) {
        model_logits(model, row, 1);
        struct tensor logits = tensor_range(&model->activations.logits, 0, VOCABULARY);
        float *got = values_of(&s->be, &logits);
        for (int v = 0; v < VOCABULARY; v++) {
            double error = fabs(got[v] - expected[row * VOCABULARY + v]);
            double size = fabs(expected[row * VOCABULARY + v]);
            /* Not fmax(): two of them in a loop break gcc 12 for arm64. */
            if (error > worst || isnan(error)) worst = error;
            if (size > largest) largest = size;
        }
        free(got);
    }
    s->logits = worst / largest;
    expect_within(s, "logits", s->logits, s->bounds->logits);
}

/* True if logits and first gradients equal the fixture's up to fp32 rounding. */
static bool check_fixture(int index) {
    struct setup s;
    open_setup(&s, &all_bounds[index]);
    check_logits(&s);
    check_steps(&s);
    if (s.bounds->movement > 0) check_final_weights(&s);
    close_setup(&s);
    return s.logits < 1e-4 && s.gradients < 1e-3;
}

/* A test of one fixture, the `index`-th of all_bounds. */
#define FIXTURE(name, index)  \
    Test(gpt_golden, name) {  \
        check_fixture(index); \
    }
FIXTURE(fp32, 0)
FIXTURE(bf16, 1)
FIXTURE(fp16, 2)
FIXTURE(llama_fp32, 3)
FIXTURE(llama_bf16, 4)
FIXTURE(llama_fp16, 5)
FIXTURE(qwen2_fp32, 6)
FIXTURE(qwen3_fp32, 7)
FIXTURE(qwen3_bf16, 8)
FIXTURE(qwen3_fp16, 9)
/* Prompts do not count (targets of -100); the mean is over the others of both micro-batches. */
FIXTURE(llama_masked_fp32, 10)

/* Documents with masks and positions of their own; a window shorter than the sequence. */
Test(gpt_golden, first_keys) {
    for (int i = 25; i < 28; i++) check_fixture(i);
}

Test(gpt_golden, fp8) {
    enum { FIRST = 11, RECIPES = 7 };
    int equal = 0;
    for (int i = 0; i < RECIPES; i++) equal += check_fixture(FIRST + i);
    if (verbose()) fprintf(stderr, "%d of %d recipes are equal\n", equal, (int)RECIPES);
    if (!test_tensor_cores())
        cr_expect_geq(equal, 3, "%d recipes are equal to the reference", equal);
}

/* Microscaling formats: blocks of 32 share a scale, in operands that torchao rounds. */
Test(gpt_golden, microscaling) {
    enum { FIRST = 28, FIXTURES = 4 };
    int equal = 0;
    for (int i = 0; i < FIXTURES; i++) equal += check_fixture(FIRST + i);
    if (verbose()) fprintf(stderr, "%d of %d fixtures are equal\n", equal, (int)FIXTURES);
    if (test_device() == DEVICE_CPU)
        cr_expect_geq(equal, 1, "%d fixtures are equal to the reference", equal);
}

/* fp8 in blocks; NVFP4 with stochastic rounding, Hadamard transforms and squares of weights. */
Test(gpt_golden, block_scaled) {
    enum { FIRST = 32, FIXTURES = 3 };
    int equal = 0;
    for (int i = 0; i < FIXTURES; i++) equal += check_fixture(FIRST + i);
    if (verbose()) fprintf(stderr, "%d of %d fixtures are equal\n", equal, (int)FIXTURES);
    if (test_device() == DEVICE_CPU)
        cr_expect_geq(equal, 1, "%d fixtures are equal to the reference", equal);
}

#ifdef EMULATED
/* Codes and scales go to the library, whose values and sums are those of the values in bf16. */
static void check_blocks(int sm, int index) {
    cuda_emulator_capability(sm);
    long before = fake_cublaslt_counts()->in_blocks;
    check_fixture(index);
    cr_expect_gt(fake_cublaslt_counts()->in_blocks, before, "fixture %d", index);
}

Test(gpt_golden, blocks_on_blackwell) {
    static const int fixtures[] = {28, 32, 33}; /* sizes of the others are not multiples of 32 */
    for (int i = 0; i < 3; i++) check_blocks(100, fixtures[i]);
}
#endif

Test(gpt_golden, optimizers) {
    enum { FIRST = 35, FIXTURES = 5 };
    for (int i = 0; i < FIXTURES; i++) check_fixture(FIRST + i);
}

/* Scaled ropes, at twice the original positions. */
Test(gpt_golden, ropes) {
    enum { FIRST = 40, FIXTURES = 3 };
    for (int i = 0; i < FIXTURES; i++) check_fixture(FIRST + i);
}

/* Windows in some layers, norms after branches, caps (2) and norms and ropes of heads (3). */
FIXTURE(gemma2_fp32, 43)
FIXTURE(gemma2_bf16, 44)
FIXTURE(gemma2_fp16, 45)
FIXTURE(gemma3_fp32, 46)
FIXTURE(gemma3_bf16, 47)
FIXTURE(gemma3_fp16, 48)
FIXTURE(gemma3_isolated_fp32, 49)

/* Norms after branches alone, q and k normalized as a whole, yarn in layers without a window. */
FIXTURE(olmo3_fp32, 50)
FIXTURE(olmo3_bf16, 51)
FIXTURE(olmo3_fp16, 52)

/* Factors of embeddings, scores, branches and logits, and norms after branches. */
FIXTURE(hyperclovax_fp32, 53)
FIXTURE(hyperclovax_bf16, 54)

/* A gate of attention's output. */
FIXTURE(qwen3_5_fp32, 55)
FIXTURE(qwen3_5_bf16, 56)

/* Gated DeltaNets, and a part of a head that rotates. */
FIXTURE(deltanet_fp32, 57)
FIXTURE(deltanet_bf16, 58)

/* Layers without rope between windows; fused matrices. They have no kernels of their own. */
Test(gpt_golden, exaone4_and_phi3) {
    enum { FIRST = 59, FIXTURES = 2 };
    for (int i = 0; i < FIXTURES && !test_emulated(); i++) check_fixture(FIRST + i);
}

/* Adapters on a frozen model, as PEFT trains them. */
Test(gpt_golden, lora) {
    enum { FIRST = 18, FIXTURES = 7 };
    for (int i = 0; i < FIXTURES; i++)
        if (!test_emulated() || !test_sanitized() || i % 3 == 0) check_fixture(FIRST + i);
}
