/* Log-likelihoods of texts with shared beginnings equal those of each text in a pass of its own. */
#include "model/config/config_keys.h"
#include "model/core/forward.h"
#include "model/core/gpt_initialize.h"
#include "model/core/loglikelihood.h"
#include "test/model/sample_fixture.h"
#include "test/ranks_world.h"

enum { GROUPS = 9, ENDINGS = 4, TEXTS = GROUPS * ENDINGS };

struct texts {
    int32_t tokens[TEXTS][RIG_LENGTH + 1];
    struct scored_text list[TEXTS];
};

/* Groups with beginnings of 0 to many tokens; some endings begin alike, the last group's texts
 * differ from their first token on, and its scored part begins at different tokens. */
static void make_texts(struct texts *texts) {
    for (int i = 0; i < TEXTS; i++) {
        int group = i / ENDINGS, begin = group * 3 % 25 + 1, own = 1 + (i * 5 + group) % 7;
        int count = begin + own > RIG_LENGTH + 1 ? RIG_LENGTH + 1 : begin + own;
        for (int t = 0; t < count; t++) {
            uint64_t stream = t < begin && group < GROUPS - 1 ? (uint64_t)group : 100 + (uint64_t)i;
            if (t == begin) stream = 50 + (uint64_t)i / 2;
            texts->tokens[i][t] = (int32_t)(random_bits(9, stream, (uint64_t)t) % RIG_VOCABULARY);
        }
        texts->list[i] = (struct scored_text){
            .tokens = texts->tokens[i], .count = count, .first = begin, .group = group};
        if (group == GROUPS - 1 && count > 3) texts->list[i].first = count - 1 - i % 2;
        if (group == GROUPS - 2 && i % 2) texts->list[i].first -= i % 4; /* scored earlier */
    }
}

/* Scores the text alone, at the beginning of the first sequence, without branches. */
static double alone(struct gpt *gpt, const struct scored_text *text) {
    int32_t tokens[2 * RIG_LENGTH] = {0}, targets[2 * RIG_LENGTH];
    for (int i = 0; i < 2 * RIG_LENGTH; i++) targets[i] = -1;
    for (int64_t t = 0; t < text->count - 1; t++) {
        tokens[t] = text->tokens[t];
        if (t + 1 >= text->first) targets[t] = text->tokens[t + 1];
    }
    gpt_set_batch(gpt, 2, RIG_LENGTH);
    backend_upload(gpt->be, gpt->activations.tokens, tokens, sizeof tokens);
    backend_upload(gpt->be, gpt->activations.targets, targets, sizeof targets);
    gpt_forward(gpt);
    gpt_loss(gpt, NULL, NULL);
    float *losses = rig_floats(gpt->be, &gpt->activations.losses);
    double sum = 0;
    for (int i = 0; i < 2 * RIG_LENGTH; i++) sum -= (double)losses[i];
    free(losses);
    return sum;
}

/* Sums of up to 7 losses. In fp32 the order of sums differs, by 1.7e-4 at most over all families
 * and CPU levels (v2; 4.9e-5 on v4); in 16 bit a few tensors may round to their neighbours; in fp8
 * as much as in the test of the cache. */
static double tolerance(enum config_precision precision) {
    if (precision == CONFIG_PRECISION_FP32) return 5e-4;
    if (precision == CONFIG_PRECISION_FP16) return 0.05;
    return precision == CONFIG_PRECISION_BF16 ? 0.3 : 3;
}

static void check_texts(enum config_precision precision, int family, int64_t window) {
    struct rig rig = {0};
    struct gpt gpt;
    struct scorer scorer;
    struct texts texts;
    rig_config(&rig.config, precision);
    rig.config.fp8.recipe = CONFIG_RECIPE_ROW; /* scales do not depend on other rows */
    set_family(&rig.config, family);
    rig.config.model.window = window;
    rig.config.model.window_pattern = family % 2 ? 2 : 0; /* only the first layer has it */
    make_texts(&texts);
    open_planned(&rig, &gpt, GPT_EVALUATION, scorer_plan);
    cr_assert_eq(scorer_open(&scorer, &gpt, &rig.error), 0, "%s", rig.error.text);
    cr_assert_eq(scorer_run(&scorer, texts.list, TEXTS, &rig.error), 0, "%s", rig.error.text);
    int64_t rows = 0;
    for (int i = 0; i < TEXTS; i++) {
        double expected = alone(&gpt, &texts.list[i]);
        rows += texts.list[i].count - 1;
        cr_expect_lt(expected, 0);
        cr_expect_float_eq(texts.list[i].log_likelihood, expected,
                           tolerance(precision) * (1 + fabs(expected) / 16),
                           "%s, family %d, text %d: %g, alone %g", config_precision_name(precision),
                           family, i, texts.list[i].log_likelihood, expected);
    }
    cr_expect_lt(scorer.rows_run, rows, "nothing was shared");
    scorer_close(&scorer);
    close_sampler(&rig, &gpt);
}

/* The tensor scale of nvfp4 depends on all rows of the batch. An emulated GPU is slow: two families
 * in two precisions reach all kernels with positions and keys of their own. */
Test(loglikelihood, of_texts_with_shared_beginnings) {
    bool device = test_device() == DEVICE_CUDA;
    for (size_t i = 0; i < COUNT(rig_precisions) && rig_precisions[i] != CONFIG_PRECISION_NVFP4;
         i++)
        for (int family = 0; family < (device ? 2 : FAMILIES); family++) {
            if (device && rig_precisions[i] != CONFIG_PRECISION_FP32 &&
                rig_precisions[i] != CONFIG_PRECISION_BF16)
                continue;
            check_texts(rig_precisions[i], family, 0);
            check_texts(rig_precisions[i], family, 1 + 7 * family);
        }
}

/* Batches of fewer rows than a few queries have parts of their keys: the planned memory is enough
 * for every number of rows that texts have. Losses are of no interest. */
Test(loglikelihood, of_short_batches) {
    struct rig rig = {0};
    struct gpt gpt;
    struct scorer scorer;
    int32_t tokens[48] = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_head = 32;
    rig.config.model.n_embd = 64;
    rig.config.model.n_positions = rig.config.data.seq_len = 47;
    rig.config.train.micro_batch_size = 1;
    open_planned(&rig, &gpt, GPT_EVALUATION, scorer_plan);
    cr_assert_eq(scorer_open(&scorer, &gpt, &rig.error), 0, "%s", rig.error.text);
    for (int64_t first = 1; first < 48; first++) {
        struct scored_text text = {.tokens = tokens, .count = 48, .first = first};
        cr_assert_eq(scorer_run(&scorer, &text, 1, &rig.error), 0, "%s", rig.error.text);
        cr_expect_lt(text.log_likelihood, 0);
    }
    scorer_close(&scorer);
    close_sampler(&rig, &gpt);
}

/* Results of each rank, which scores some of the batches. */
struct scores {
    double of[WORLD_RANKS_MAX][TEXTS];
};

static void score_on_rank(const struct ranks *ranks, void *argument) {
    struct scores *scores = argument;
    struct rig rig = {0};
    struct gpt gpt;
    struct scorer scorer;
    struct texts texts;
    char note[PRECISION_NOTE_MAX];
    struct backend_options options = {.device = DEVICE_CPU, .threads = 1, .ranks = ranks};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    make_texts(&texts);
    world_requires(
        backend_open(&rig.be, &options, &rig.error) == 0 &&
            precision_resolve(&rig.precision, note, &rig.config, &rig.be, &rig.error) == 0 &&
            gpt_open(&gpt, &rig.config, &rig.precision, &rig.be, GPT_EVALUATION, &rig.error) == 0,
        rig.error.text);
    backend_plan_begin(&rig.be);
    scorer_plan(&gpt);
    world_requires(backend_plan_end(&rig.be, &rig.error) == 0 &&
                       gpt_allocate(&gpt, &rig.error) == 0 &&
                       scorer_open(&scorer, &gpt, &rig.error) == 0,
                   rig.error.text);
    gpt_initialize(&gpt, 3);
    world_requires(scorer_run(&scorer, texts.list, TEXTS, &rig.error) == 0, rig.error.text);
    for (int i = 0; i < TEXTS; i++) scores->of[ranks->rank][i] = texts.list[i].log_likelihood;
    scorer_close(&scorer);
    close_sampler(&rig, &gpt);
}

Test(loglikelihood, is_the_same_on_all_ranks) {
    struct scores alone, many;
    world_run(1, 4096, true, score_on_rank, &alone);
    for (int ranks = 2; ranks <= 3; ranks++) {
        world_run(ranks, 4096, true, score_on_rank, &many);
        for (int rank = 0; rank < ranks; rank++)
            cr_expect_arr_eq(many.of[rank], alone.of[0], sizeof alone.of[0], "rank %d of %d", rank,
                             ranks);
    }
}

Test(loglikelihood, stops_at_a_signal) {
    struct rig rig = {0};
    struct gpt gpt;
    struct scorer scorer;
    struct texts texts;
    const volatile sig_atomic_t stop = SIGINT;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    make_texts(&texts);
    open_planned(&rig, &gpt, GPT_EVALUATION, scorer_plan);
    cr_assert_eq(scorer_open(&scorer, &gpt, &rig.error), 0, "%s", rig.error.text);
    scorer.stop = &stop;
    cr_expect_eq(scorer_run(&scorer, texts.list, TEXTS, &rig.error), RESULT_STOPPED);
    scorer_close(&scorer);
    close_sampler(&rig, &gpt);
}
