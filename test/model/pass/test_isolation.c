/* data.isolate and model.window: the first key of each token. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include "model/pass/backward.h"
#include "model/pass/forward.h"
#include "model/task/evaluate.h"
#include "model/task/objective.h"

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
    /* Scales of queries are those of positions in the sequence, which are 1 up to these. */
    rig->config.model.rope_original_positions = 128;
    rig->config.data.isolate = isolate;
    rig_open(rig, 1);
    rig->loader.options.shuffle = false;
}

static struct result pass_over(struct rig *rig, const struct batch_view *batch) {
    struct model *model = &rig->trainer.model;
    struct pass pass = trainer_pass(&rig->trainer, true, true);
    pass.batch = *batch;
    model_clear_gradients(model);
    model_forward(&pass);
    objective_loss(&pass);
    model_backward(&pass);
    return (struct result){rig_floats(&rig->be, &model->activations.losses),
                           rig_floats(&rig->be, &model->gradients), model->trained_count};
}

static struct result pass(struct rig *rig) {
    return pass_over(rig, &rig->trainer.batches.view);
}

static const struct step_inputs inputs = {.loss_weight = 1.0f / ROWS};

static struct result packed(int family, const uint8_t *starts, bool isolate) {
    struct rig rig = {0};
    open_plain(&rig, family, SEQUENCES, RIG_LENGTH, isolate);
    rig.tokens.shards[0].mask.starts = starts;
    cr_assert_eq(batches_put(&rig.trainer.batches, &rig.loader, 0, SEQUENCES, &inputs, &rig.error),
                 0);
    struct result result = pass(&rig);
    rig_close(&rig);
    return result;
}

/* Adds the pass of tokens first..first+length, as a sequence of their own. */
static void add_alone(struct result *sum, int family, int first, int length) {
    struct rig rig = {0};
    open_plain(&rig, family, 1, length, false);
    const int32_t *tokens = rig.tokens.shards[0].owned + first;
    struct batch batch = rig_batch(&rig.be, tokens, tokens + 1, 1, length);
    *batch.host.inputs = inputs;
    batch_upload(&batch);
    struct result alone = pass_over(&rig, &batch.sent);
    cr_assert_eq(alone.count, sum->count);
    memcpy(sum->losses + first, alone.losses, (size_t)length * sizeof *alone.losses);
    for (int64_t i = 0; i < sum->count; i++) sum->gradients[i] += alone.gradients[i];
    batch_close(&batch);
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

/* Opens a rig whose data are rows of several lengths, packed whole: the marks of mark_starts, and
 * of four tokens three that count. */
static void open_rows(struct rig *rig, int family, int64_t batch, int64_t length) {
    uint8_t marks[RIG_TOKENS], starts[RIG_MASK_BYTES];
    struct tokens rows;
    rig_config(&rig->config, CONFIG_PRECISION_FP32);
    set_family(&rig->config, family);
    rig->config.model.n_positions = rig->config.data.seq_len = length;
    rig->config.model.rope_original_positions = 128;
    rig->config.train.micro_batch_size = batch;
    rig->config.train.grad_accum_steps = 1;
    rig->config.data.isolate = true;
    rig_open(rig, 1);
    mark_starts(starts);
    for (int i = 0; i < RIG_TOKENS; i++)
        marks[i] = (is_start(starts, i) ? TOKEN_BEGINS : 0) | (i % 4 ? TOKEN_COUNTS : 0);
    int32_t *tokens = malloc(sizeof(int32_t) * RIG_TOKENS);
    memcpy(tokens, rig->tokens.shards[0].owned, sizeof(int32_t) * RIG_TOKENS);
    cr_assert_eq(tokens_from_memory_marked(&rows, tokens, marks, RIG_TOKENS, "rows", &rig->error),
                 0);
    rig->loader.options.whole = true;
    rig_use_shards(rig, &rows);
}

/* Adds the losses of a sample's rows of the batch, each to that of its token, and the gradients. */
static void add_pass(struct result *sum, struct rig *rig, uint64_t sample, int count) {
    struct result one = pass(rig);
    const int64_t length = rig->config.data.seq_len;
    for (int i = 0; i < count; i++) {
        int64_t at = i * length;
        for (struct span span = loader_first_span(&rig->loader, sample + (uint64_t)i);
             span.length > 0; span = loader_next_span(&rig->loader, span)) {
            for (size_t t = 0; t < span.length; t++)
                sum->losses[span.start + t] += one.losses[at + (int64_t)t];
            at += (int64_t)span.length;
        }
        for (; at < (i + 1) * length; at++) cr_assert_eq(one.losses[at], 0);
    }
    for (int64_t i = 0; i < sum->count; i++) sum->gradients[i] += one.gradients[i];
    result_free(&one);
}

static void put_samples(struct rig *rig, uint64_t sample, int count) {
    cr_assert_eq(batches_put(&rig->trainer.batches, &rig->loader, (int64_t)sample, count, &inputs,
                             &rig->error),
                 0, "%s", rig->error.text);
}

/* Leaves one row in each sequence. */
static void unpack(struct loader *loader) {
    struct packing *packing = &loader->packing;
    arrsetlen(packing->first, packing_units(packing));
    for (uint32_t i = 0; i < packing_units(packing); i++) {
        packing->first[i] = i;
        packing->pieces[i].next = PIECE_NONE;
    }
    loader->sequence_count = packing_units(packing);
}

static struct result pass_over_rows(int family, int64_t length, bool packed) {
    enum { AT_ONCE = 2 };
    struct rig rig = {0};
    open_rows(&rig, family, AT_ONCE, length);
    const uint64_t sequences = rig.loader.sequence_count;
    if (!packed) unpack(&rig.loader);
    cr_assert_eq(packed, rig.loader.sequence_count == sequences);
    struct result sum = {.count = rig.trainer.model.trained_count};
    sum.losses = calloc(RIG_TOKENS, sizeof *sum.losses);
    sum.gradients = calloc((size_t)sum.count, sizeof *sum.gradients);
    for (uint64_t i = 0; i < rig.loader.sequence_count; i += AT_ONCE) {
        const uint64_t left = rig.loader.sequence_count - i;
        const int count = left < AT_ONCE ? (int)left : AT_ONCE;
        put_samples(&rig, i, count);
        add_pass(&sum, &rig, i, count);
    }
    rig_close(&rig);
    return sum;
}

/* Losses within 1e-6 of themselves: only the order of sums differs. */
Test(isolation, rows_packed_whole_are_rows_one_per_sequence) {
    static const int64_t row_lengths[] = {77, 33};
    for (int family = 0; family < FAMILIES; family++) {
        const int64_t length = row_lengths[family % 2];
        struct result packed = pass_over_rows(family, length, true);
        struct result alone = pass_over_rows(family, length, false);
        for (int t = 0; t < RIG_TOKENS; t++)
            cr_assert_float_eq(packed.losses[t], alone.losses[t], 1e-6f * (1 + alone.losses[t]),
                               "family %d, token %d: %g, alone %g", family, t,
                               (double)packed.losses[t], (double)alone.losses[t]);
        float largest, worst = worst_of(alone.gradients, packed.gradients, alone.count, &largest);
        cr_expect_lt(worst, 64 * 0x1p-24f * largest, "gradients: %g of %g", worst, largest);
        result_free(&packed);
        result_free(&alone);
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
        config.train.recompute = RECOMPUTE_GELU;
        expect_same_digest(first, train(&config, starts), "gelu");
        config.train.recompute = RECOMPUTE_LAYER;
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
        struct model *model = &rig.trainer.model;
        int32_t tokens[RIG_LENGTH + 1];
        for (int i = 0; i <= RIG_LENGTH; i++) tokens[i] = i * 11 % RIG_VOCABULARY;
        for (int i = 0; i < 2; i++) {
            tokens[CHANGED] += i;
            rig_evaluate(model, tokens, tokens + 1, 1, RIG_LENGTH);
            losses[i] = rig_floats(&rig.be, &model->activations.losses);
        }
        for (int64_t t = 0; t < RIG_LENGTH; t++) {
            bool depends = t >= CHANGED && t <= CHANGED + 2 * (window - 1);
            if (t == CHANGED - 1) continue; /* its target was changed */
            cr_expect_eq(losses[0][t] != losses[1][t], depends, "window %d, token %d", (int)window,
                         (int)t);
        }
        cr_expect_eq(model_window(model, 0), window < RIG_LENGTH ? window : 0);
        free(losses[0]);
        free(losses[1]);
        rig_close(&rig);
    }
}
