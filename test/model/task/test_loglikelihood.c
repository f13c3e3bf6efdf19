/* Log-likelihoods of texts with shared beginnings equal those of each text in a pass of its own. */
#include "model/config/config_keys.h"
#include "model/core/model_initialize.h"
#include "model/pass/forward.h"
#include "model/task/loglikelihood.h"
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
static double alone(struct model *model, const struct scored_text *text) {
    int32_t tokens[2 * RIG_LENGTH] = {0}, targets[2 * RIG_LENGTH];
    for (int i = 0; i < 2 * RIG_LENGTH; i++) targets[i] = -1;
    for (int64_t t = 0; t < text->count - 1; t++) {
        tokens[t] = text->tokens[t];
        if (t + 1 >= text->first) targets[t] = text->tokens[t + 1];
    }
    rig_evaluate(model, tokens, targets, 2, RIG_LENGTH);
    float *losses = rig_floats(model->be, &model->activations.losses);
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
    struct model model;
    struct scorer scorer;
    struct texts texts;
    rig_config(&rig.config, precision);
    rig.config.fp8.recipe = CONFIG_RECIPE_ROW; /* scales do not depend on other rows */
    set_family(&rig.config, family);
    set_window(&rig.config, family, window);
    make_texts(&texts);
    open_planned(&rig, &model, PURPOSE_EVALUATION, scorer_plan);
    cr_assert_eq(scorer_open(&scorer, &model, &rig.error), 0, "%s", rig.error.text);
    cr_assert_eq(scorer_run(&scorer, texts.list, TEXTS, &rig.error), 0, "%s", rig.error.text);
    int64_t rows = 0;
    for (int i = 0; i < TEXTS; i++) {
        double expected = alone(&model, &texts.list[i]);
        rows += texts.list[i].count - 1;
        cr_expect_lt(expected, 0);
        cr_expect_float_eq(texts.list[i].log_likelihood, expected,
                           tolerance(precision) * (1 + fabs(expected) / 16),
                           "%s, family %d, text %d: %g, alone %g", config_precision_name(precision),
                           family, i, texts.list[i].log_likelihood, expected);
    }
    if (rig.config.model.full_attention_interval > 0) cr_expect_geq(scorer.rows_run, rows);
    else cr_expect_lt(scorer.rows_run, rows, "nothing was shared");
    scorer_close(&scorer);
    close_sampler(&rig, &model);
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
            check_texts(rig_precisions[i], family, window_of(family));
        }
}

/* Padding has no part in the scales of quantized tensors: log-likelihoods keep their bits when the
 * embedding of a token that no text has moves far, although padding was that token. */
Test(loglikelihood, does_not_depend_on_padding) {
    static const enum config_precision precisions[] = {CONFIG_PRECISION_FP8,
                                                       CONFIG_PRECISION_NVFP4};
    for (int i = 0; i < 2 * FAMILIES; i++) {
        struct rig rig = {0};
        struct model model;
        struct scorer scorer;
        struct texts texts;
        double before[TEXTS];
        rig_config(&rig.config, precisions[i % 2]);
        set_family(&rig.config, i / 2);
        rig.config.model.tied_head = false;
        make_texts(&texts);
        for (int j = 0; j < TEXTS; j++)
            for (int t = 0; t <= RIG_LENGTH; t++) texts.tokens[j][t] += texts.tokens[j][t] == 0;
        open_planned(&rig, &model, PURPOSE_EVALUATION, scorer_plan);
        cr_assert_eq(scorer_open(&scorer, &model, &rig.error), 0, "%s", rig.error.text);
        for (int moved = 0; moved < 2; moved++) {
            if (moved) move_token_zero(&model);
            cr_assert_eq(scorer_run(&scorer, texts.list, 5, &rig.error), 0, "%s", rig.error.text);
            for (int j = 0; j < 5; j++) {
                if (!moved) before[j] = texts.list[j].log_likelihood;
                cr_expect_eq(texts.list[j].log_likelihood, before[j], "%d, text %d: %g, %g", i, j,
                             texts.list[j].log_likelihood, before[j]);
            }
        }
        scorer_close(&scorer);
        close_sampler(&rig, &model);
    }
}

/* Batches of fewer rows than a few queries have parts of their keys: the planned memory is enough
 * for every number of rows that texts have. Losses are of no interest. */
Test(loglikelihood, of_short_batches) {
    struct rig rig = {0};
    struct model model;
    struct scorer scorer;
    int32_t tokens[48] = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_head = 32;
    rig.config.model.n_embd = 64;
    rig.config.model.n_positions = rig.config.data.seq_len = 47;
    rig.config.train.micro_batch_size = 1;
    open_planned(&rig, &model, PURPOSE_EVALUATION, scorer_plan);
    cr_assert_eq(scorer_open(&scorer, &model, &rig.error), 0, "%s", rig.error.text);
    for (int64_t first = 1; first < 48; first++) {
        struct scored_text text = {.tokens = tokens, .count = 48, .first = first};
        cr_assert_eq(scorer_run(&scorer, &text, 1, &rig.error), 0, "%s", rig.error.text);
        cr_expect_lt(text.log_likelihood, 0);
    }
    scorer_close(&scorer);
    close_sampler(&rig, &model);
}

/* Results of each rank, which scores some of the batches. */
struct scores {
    double of[WORLD_RANKS_MAX][TEXTS];
};

static void score_on_rank(const struct ranks *ranks, void *argument) {
    struct scores *scores = argument;
    struct rig rig = {0};
    struct model model;
    struct scorer scorer;
    struct texts texts;
    struct backend_options options = {.device = DEVICE_CPU, .threads = 1, .ranks = ranks};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    make_texts(&texts);
    world_requires(backend_open(&rig.be, &options, &rig.error) == 0 &&
                       precision_resolve(&rig.precision, NULL, &rig.config, &rig.be, &rig.error) ==
                           0 &&
                       model_open(&model, &rig.config, &rig.precision, &rig.be, PURPOSE_EVALUATION,
                                  &rig.error) == 0,
                   rig.error.text);
    backend_plan_begin(&rig.be);
    scorer_plan(&model);
    world_requires(backend_plan_end(&rig.be, &rig.error) == 0 &&
                       model_allocate(&model, &rig.error) == 0 &&
                       scorer_open(&scorer, &model, &rig.error) == 0,
                   rig.error.text);
    model_initialize(&model, 3);
    world_requires(scorer_run(&scorer, texts.list, TEXTS, &rig.error) == 0, rig.error.text);
    for (int i = 0; i < TEXTS; i++) scores->of[ranks->rank][i] = texts.list[i].log_likelihood;
    scorer_close(&scorer);
    close_sampler(&rig, &model);
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
    struct model model;
    struct scorer scorer;
    struct texts texts;
    const volatile sig_atomic_t stop = SIGINT;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    make_texts(&texts);
    open_planned(&rig, &model, PURPOSE_EVALUATION, scorer_plan);
    cr_assert_eq(scorer_open(&scorer, &model, &rig.error), 0, "%s", rig.error.text);
    scorer.stop = &stop;
    cr_expect_eq(scorer_run(&scorer, texts.list, TEXTS, &rig.error), RESULT_STOPPED);
    scorer_close(&scorer);
    close_sampler(&rig, &model);
}
