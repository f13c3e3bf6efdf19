/* data.isolate and model.window: the first key of each token. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include "model/core/backward.h"
#include "model/core/evaluate.h"
#include "model/core/forward.h"

enum { SEQUENCES = 3, ROWS = SEQUENCES * RIG_LENGTH };

/* Lengths of documents, one after another in the text: some fill a row or more, or cross its end.
 */
static const int lengths[] = {5, 1, 1, 20, 9, 32, 7, 40, 100};

static void mark_starts(uint8_t starts[RIG_MASK_BYTES]) {
    memset(starts, 0, RIG_MASK_BYTES);
    for (int i = 0, at = 0; at < RIG_TOKENS; at += lengths[i++ % (int)COUNT(lengths)])
        starts[at / 8] |= (uint8_t)(1 << at % 8);
}

static bool is_start(const uint8_t *starts, int token) {
    return starts[token / 8] >> token % 8 & 1;
}

/* Losses of the rows and gradients of one pass, in fp32. */
struct result {
    float *losses, *gradients;
    int64_t count; /* number of gradients */
};

static void result_free(struct result *result) {
    free(result->losses);
    free(result->gradients);
}

/* Opens a rig with whole, unshuffled sequences of `length` tokens. */
static void open_plain(struct rig *rig, int family, int64_t batch, int64_t length, bool isolate) {
    rig_config(&rig->config, CONFIG_PRECISION_FP32);
    set_family(&rig->config, family);
    rig->config.train.micro_batch_size = batch;
    rig->config.train.grad_accum_steps = 1;
    rig->config.data.seq_len = length;
    rig->config.data.isolate = isolate;
    rig_open(rig, 1);
    rig->loader.options.shuffle = false;
}

static struct result pass(struct rig *rig) {
    struct trainer *trainer = &rig->trainer;
    struct gpt *gpt = &trainer->gpt;
    gpt_clear_gradients(gpt);
    gpt_forward(gpt);
    gpt_loss(gpt, &trainer->optimizer.state->loss_scale, NULL);
    gpt_backward(gpt);
    return (struct result){rig_floats(&rig->be, &gpt->activations.losses),
                           rig_floats(&rig->be, &gpt->gradients), gpt->trained_count};
}

static const struct step_inputs inputs = {.loss_weight = 1.0f / ROWS};

static struct result packed(int family, const uint8_t *starts, bool isolate) {
    struct rig rig = {0};
    open_plain(&rig, family, SEQUENCES, RIG_LENGTH, isolate);
    rig.tokens.shards[0].mask.starts = starts;
    struct gpt *gpt = &rig.trainer.gpt;
    cr_assert_eq(batches_put(&rig.trainer.batches, gpt, &rig.loader, 0, gpt->shape.batch, &inputs,
                             &rig.error),
                 0);
    struct result result = pass(&rig);
    rig_close(&rig);
    return result;
}

/* Adds the pass of tokens first..first+length, as a sequence of their own. */
static void add_alone(struct result *sum, int family, int first, int length) {
    struct rig rig = {0};
    open_plain(&rig, family, 1, length, false);
    struct gpt *gpt = &rig.trainer.gpt;
    struct step_inputs *sent = backend_allocate(&rig.be, sizeof *sent);
    const int32_t *tokens = rig.tokens.shards[0].owned + first;
    backend_upload(&rig.be, sent, &inputs, sizeof inputs);
    backend_upload(&rig.be, gpt->activations.tokens, tokens, (size_t)length * sizeof *tokens);
    backend_upload(&rig.be, gpt->activations.targets, tokens + 1, (size_t)length * sizeof *tokens);
    gpt->activations.inputs = sent;
    struct result alone = pass(&rig);
    cr_assert_eq(alone.count, sum->count);
    memcpy(sum->losses + first, alone.losses, (size_t)length * sizeof *alone.losses);
    for (int64_t i = 0; i < sum->count; i++) sum->gradients[i] += alone.gradients[i];
    backend_release(&rig.be, sent);
    result_free(&alone);
    rig_close(&rig);
}

static float worst_of(const float *a, const float *b, int64_t count, float *largest) {
    float worst = 0;
    *largest = 0;
    for (int64_t i = 0; i < count; i++) {
        worst = fmaxf(worst, fabsf(a[i] - b[i]));
        *largest = fmaxf(*largest, fabsf(a[i]));
    }
    return worst;
}

/* Sums in another order: a few units of 2^-24 of the largest value. */
static void expect_close(const char *what, const float *a, const float *b, int64_t count) {
    float largest, worst = worst_of(a, b, count, &largest);
    cr_expect_lt(worst, 16 * 0x1p-24f * largest, "%s: %g of %g", what, worst, largest);
}

Test(isolation, packed_documents_are_documents_one_by_one) {
    uint8_t starts[RIG_MASK_BYTES];
    mark_starts(starts);
    for (int family = 0; family < FAMILIES; family++) {
        struct result whole = packed(family, starts, true);
        struct result mixed = packed(family, starts, false), sum = {.count = whole.count};
        sum.losses = calloc(ROWS, sizeof *sum.losses);
        sum.gradients = calloc((size_t)sum.count, sizeof *sum.gradients);
        for (int first = 0, end = 1; first < ROWS; first = end++) {
            while (end % RIG_LENGTH && !is_start(starts, end)) end++;
            add_alone(&sum, family, first, end - first);
        }
        expect_close("losses", sum.losses, whole.losses, ROWS);
        expect_close("gradients", sum.gradients, whole.gradients, sum.count);
        float largest, worst = worst_of(sum.losses, mixed.losses, ROWS, &largest);
        cr_expect_gt(worst, 1e-3f, "the documents do not depend on each other anyway");
        result_free(&whole);
        result_free(&mixed);
        result_free(&sum);
    }
}

/* The loss of an evaluation is the mean of the same losses, in training and without its memory. */
Test(isolation, evaluation_isolates_too) {
    uint8_t starts[RIG_MASK_BYTES];
    mark_starts(starts);
    for (int family = 0; family < 2; family++) {
        struct result whole = packed(family, starts, true);
        struct rig rig = {0};
        double loss, mean = 0;
        for (int i = 0; i < ROWS; i++) mean += (double)whole.losses[i] / ROWS;
        open_plain(&rig, family, SEQUENCES, RIG_LENGTH, true);
        rig.tokens.shards[0].mask.starts = starts;
        cr_assert_eq(trainer_evaluate(&rig.trainer, &loss, &rig.loader, SEQUENCES, &rig.error), 0);
        cr_expect_float_eq(loss, mean, 1e-6 * mean, "%g, %g", loss, mean);
        rig_close(&rig);
        result_free(&whole);
    }
}

static struct digest train(const struct config *config, const uint8_t *starts) {
    struct rig rig = {.config = *config};
    rig_open(&rig, 2);
    rig.tokens.shards[0].mask.starts = starts;
    rig_steps(&rig, 3);
    struct digest digest = rig_digest(&rig);
    cr_expect_str_eq(rig.be.failure.text, "");
    rig_close(&rig);
    return digest;
}

Test(isolation, any_recomputation_gives_the_same_bits) {
    uint8_t starts[RIG_MASK_BYTES];
    mark_starts(starts);
    for (int variant = 0; variant < 12; variant++) {
        struct config config;
        rig_config(&config, rig_precisions[variant % 3]);
        set_family(&config, variant % 2);
        config.data.isolate = variant % 4 < 3;
        config.model.window = variant % 4 ? 9 : 0;
        struct digest first = train(&config, starts);
        config.train.recompute = CONFIG_RECOMPUTE_GELU;
        expect_same_digest(first, train(&config, starts), "gelu");
        config.train.recompute = CONFIG_RECOMPUTE_LAYER;
        expect_same_digest(first, train(&config, starts), "layer");
        config.data.isolate = false;
        config.model.window = 0;
        cr_expect_str_neq(first.hex, train(&config, starts).hex, "the first keys are not used");
    }
}

Test(isolation, some_layers_have_the_window) {
    static const struct {
        int64_t window, from, pattern;
        int same; /* the case that has windows in the same ones of the two layers */
    } cases[] = {{0, 0, 0, 0}, {9, 0, 0, 1}, {9, 1, 0, 2}, {9, 0, 2, 3},
                 {9, 2, 0, 0}, {9, 0, 1, 0}, {9, 0, 3, 1}, {9, 1, 3, 2}};
    uint8_t starts[RIG_MASK_BYTES];
    struct digest digests[COUNT(cases)];
    mark_starts(starts);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        rig_config(&config, CONFIG_PRECISION_FP32);
        config.model.window = cases[i].window;
        config.model.window_from = cases[i].from;
        config.model.window_pattern = cases[i].pattern;
        digests[i] = train(&config, starts);
        for (size_t k = 0; k < i; k++)
            cr_expect_eq(strcmp(digests[i].hex, digests[k].hex) == 0,
                         cases[i].same == cases[k].same, "%zu and %zu", i, k);
    }
}

/* A token depends on the window - 1 tokens before it, and in the second layer on those before
 * these. A window as long as the sequence is none. */
Test(isolation, a_window_limits_what_a_token_depends_on) {
    enum { CHANGED = 3 };
    for (int64_t window = 1; window <= RIG_LENGTH; window += 5) {
        struct rig rig = {0};
        float *losses[2];
        rig_config(&rig.config, CONFIG_PRECISION_FP32);
        rig.config.model.window = window;
        rig.config.train.micro_batch_size = 1;
        rig_open(&rig, 1);
        struct gpt *gpt = &rig.trainer.gpt;
        int32_t tokens[RIG_LENGTH + 1];
        for (int i = 0; i <= RIG_LENGTH; i++) tokens[i] = i * 11 % RIG_VOCABULARY;
        for (int i = 0; i < 2; i++) {
            tokens[CHANGED] += i;
            backend_upload(&rig.be, gpt->activations.tokens, tokens, RIG_LENGTH * sizeof *tokens);
            backend_upload(&rig.be, gpt->activations.targets, tokens + 1,
                           RIG_LENGTH * sizeof *tokens);
            gpt_forward(gpt);
            gpt_loss(gpt, NULL, NULL);
            losses[i] = rig_floats(&rig.be, &gpt->activations.losses);
        }
        for (int64_t t = 0; t < RIG_LENGTH; t++) {
            bool depends = t >= CHANGED && t <= CHANGED + 2 * (window - 1);
            if (t == CHANGED - 1) continue; /* its target was changed */
            cr_expect_eq(losses[0][t] != losses[1][t], depends, "window %d, token %d", (int)window,
                         (int)t);
        }
        cr_expect_eq(gpt_window(gpt, 0), window < RIG_LENGTH ? window : 0);
        free(losses[0]);
        free(losses[1]);
        rig_close(&rig);
    }
}
