/* Sampling of tokens: the distribution, and the end of a text. */
#include "model/config/config_keys.h"
#include "test/model/sample_fixture.h"

static void check_greedy(enum config_precision precision) {
    struct rig rig = {0};
    struct model model;
    int32_t first[TEXT], second[TEXT];
    rig_config(&rig.config, precision);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    sample(&model, first, &options);
    cr_expect_arr_eq(first, prompt, (PROMPT) * sizeof(int32_t));
    for (int i = 0; i < TEXT; i++) cr_expect_lt(first[i], RIG_VOCABULARY);
    options.seed = 99;
    options.stream = 7;
    options.top_k = 5;
    sample(&model, second, &options);
    cr_expect_arr_eq(first, second, (TEXT) * sizeof(int32_t),
                     "temperature 0 looked at the seed or at top_k");
    options.temperature = 2;
    options.top_k = 1;
    sample(&model, second, &options); /* 16-bit logits may have several that are largest */
    if (precision == CONFIG_PRECISION_FP32)
        cr_expect_arr_eq(first, second, (TEXT) * sizeof(int32_t), "top_k 1 is not the likeliest");
    close_sampler(&rig, &model);
}

Test(sample, greedy_is_the_same_every_time_and_is_top_1) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++) check_greedy(rig_precisions[i]);
}

/* A model of zeros finds all tokens equally likely; 16-bit logits are often equal. transformers'
 * warper keeps all that equal the k-th, so a seed draws the same tokens as without top_k. */
Test(sample, top_k_keeps_equals_of_the_last) {
    struct rig rig = {0};
    struct model model;
    int32_t text[TEXT], all[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    sharpen(&model, 0);
    struct sample_options options = greedy();
    options.temperature = 1;
    sample(&model, all, &options);
    for (int64_t k = 1; k <= 4; k++) {
        options.top_k = k;
        sample(&model, text, &options);
        cr_expect_arr_eq(text, all, TEXT * sizeof *all, "top_k %d", (int)k);
    }
    close_sampler(&rig, &model);
}

/* Setting the flag ends sampling, with the tokens made so far. */
Test(sample, stops_when_asked) {
    struct rig rig = {0};
    struct model model;
    int32_t text[TEXT];
    int64_t length = 0;
    volatile sig_atomic_t stop = 1;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    options.stop = &stop;
    length = sample_some(&model, text, &options);
    cr_expect(length >= (int64_t)PROMPT && length <= (int64_t)PROMPT + 1);
    cr_expect_arr_eq(text, prompt, (PROMPT) * sizeof(int32_t));
    stop = 0;
    cr_expect_eq(sample_some(&model, text, &options), TEXT);
    close_sampler(&rig, &model);
}

Test(sample, seed_and_stream_make_the_text) {
    struct rig rig = {0};
    struct model model;
    int32_t first[TEXT], second[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    options.temperature = 1;
    options.seed = 1;
    sample(&model, first, &options);
    sample(&model, second, &options);
    cr_expect_arr_eq(first, second, (TEXT) * sizeof(int32_t));
    options.seed = 2;
    sample(&model, second, &options);
    cr_expect_arr_neq(first, second, (TEXT) * sizeof(int32_t), "another seed, the same text");
    options.seed = 1;
    options.stream = 1;
    sample(&model, second, &options);
    cr_expect_arr_neq(first, second, (TEXT) * sizeof(int32_t), "another stream, the same text");
    close_sampler(&rig, &model);
}

/* Reference: keeps the likeliest tokens one by one until their probabilities reach top_p. */
static void keep_nucleus(double *p, double top_p) {
    double kept[RIG_VOCABULARY] = {0}, sum = 0;
    while (sum < top_p) {
        int best = -1;
        for (int v = 0; v < RIG_VOCABULARY; v++)
            if (kept[v] == 0 && p[v] > 0 && (best < 0 || p[v] > p[best])) best = v;
        if (best < 0) break;
        kept[best] = p[best];
        sum += p[best];
    }
    for (int v = 0; v < RIG_VOCABULARY; v++) p[v] = kept[v] / sum;
}

/* Reference: the probabilities of the token after the prompt. */
static void expected_distribution(struct model *model, double *p, double temperature, int64_t top_k,
                                  double top_p) {
    int32_t tokens[RIG_LENGTH] = {0};
    double total = 0;
    for (size_t i = 0; i < PROMPT; i++) tokens[i] = prompt[i];
    rig_evaluate(model, tokens, NULL, 1, RIG_LENGTH);
    model_logits(model, PROMPT - 1, 1);
    float *logits = rig_floats(model->be, &model->activations.logits);
    for (int v = 0; v < RIG_VOCABULARY; v++) {
        int64_t larger = 0;
        for (int w = 0; w < RIG_VOCABULARY; w++) larger += logits[w] > logits[v];
        p[v] = top_k == 0 || larger < top_k ? exp(logits[v] / temperature) : 0;
        total += p[v];
    }
    for (int v = 0; v < RIG_VOCABULARY; v++) p[v] /= total;
    free(logits);
    keep_nucleus(p, top_p);
}

/* Pearson's test on tokens with an expected count of at least 5; all others count as one class. */
static void check_distribution(struct model *model, double temperature, int64_t top_k,
                               double top_p) {
    enum { DRAWS = 3000 };
    double p[RIG_VOCABULARY], chi_square = 0, rest = 0;
    int counts[RIG_VOCABULARY] = {0}, rest_count = 0, classes = 0;
    int32_t text[PROMPT + 1];
    expected_distribution(model, p, temperature, top_k, top_p);
    struct sample_options options = greedy();
    options.tokens = 1;
    options.temperature = temperature;
    options.top_k = top_k;
    options.top_p = top_p;
    for (int i = 0; i < DRAWS; i++) {
        options.seed = (uint64_t)i;
        sample_some(model, text, &options);
        cr_assert_lt(text[PROMPT], RIG_VOCABULARY);
        counts[text[PROMPT]]++;
    }
    for (int v = 0; v < RIG_VOCABULARY; v++) {
        cr_expect(p[v] > 0 || counts[v] == 0, "token %d cannot come, and came", v);
        if (DRAWS * p[v] >= 5) {
            chi_square += pow(counts[v] - DRAWS * p[v], 2) / (DRAWS * p[v]);
            classes++;
            continue;
        }
        rest += DRAWS * p[v];
        rest_count += counts[v];
    }
    if (rest > 0) chi_square += pow(rest_count - rest, 2) / fmax(rest, 1);
    cr_expect_geq(classes, top_k > 0 || top_p < 1 ? 2 : 5, "the distribution is too sharp to test");
    /* Mean `classes`, variance 2 * classes: five standard deviations. */
    cr_expect_lt(chi_square, classes + 5 * sqrt(2.0 * classes), "T %g, top %d: %g of %d classes",
                 temperature, (int)top_k, chi_square, classes);
}

Test(sample, draws_follow_the_softmax) {
    struct rig rig = {0};
    struct model model;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 1;
    open_sampler(&rig, &model);
    check_distribution(&model, 1, 0, 1);
    check_distribution(&model, 1.7, 4, 1);
    check_distribution(&model, 1.7, 0, 0.9);
    check_distribution(&model, 4, 0, 0.5);
    check_distribution(&model, 3, 9, 0.8);
    close_sampler(&rig, &model);
}

/* The distribution is nearly flat, so every allowed token occurs. */
static void check_top_k(struct model *model, int64_t top_k) {
    double p[RIG_VOCABULARY];
    bool seen[RIG_VOCABULARY] = {false};
    int32_t text[PROMPT + 1];
    expected_distribution(model, p, 100, top_k, 1);
    struct sample_options options = greedy();
    options.tokens = 1;
    options.temperature = 100;
    options.top_k = top_k;
    for (uint64_t i = 0; i < 12 * (uint64_t)top_k; i++) {
        options.seed = i;
        sample_some(model, text, &options);
        seen[text[PROMPT]] = true;
    }
    for (int v = 0; v < RIG_VOCABULARY; v++)
        cr_expect_eq(seen[v], p[v] > 0, "top %d: token %d %s", (int)top_k, v,
                     seen[v] ? "came" : "never came");
}

Test(sample, top_k_is_the_k_likeliest) {
    struct rig rig = {0};
    struct model model;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 1;
    open_sampler(&rig, &model);
    for (int64_t k = 1; k <= RIG_VOCABULARY; k += 1 + k / 4) check_top_k(&model, k);
    close_sampler(&rig, &model);
}

/* Only the last seq_len tokens count, so cutting the prompt there changes nothing. */
Test(sample, context_longer_than_the_window_keeps_its_end) {
    struct rig rig = {0};
    struct model model;
    int32_t whole[TEXT], cut[TEXT], given[GIVEN];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    for (size_t i = 0; i < GIVEN; i++) given[i] = (int32_t)(i * 7 % RIG_VOCABULARY);
    struct sample_options options = {
        .prompt = given, .prompt_length = GIVEN, .tokens = TEXT - GIVEN};
    sample(&model, whole, &options);
    options.prompt = given + GIVEN - RIG_LENGTH;
    options.prompt_length = RIG_LENGTH;
    sample(&model, cut, &options);
    cr_expect_arr_eq(whole, given, (GIVEN) * sizeof(int32_t));
    cr_expect_arr_eq(whole + GIVEN - RIG_LENGTH, cut,
                     (RIG_LENGTH + TEXT - GIVEN) * sizeof(int32_t));
    close_sampler(&rig, &model);
}

/* Sequences are padded to multiples of 64, so shorter ones would read other shapes. */
Test(sample, length_is_that_of_the_text) {
    cr_expect_eq(sample_length(1, 1024), 64);
    cr_expect_eq(sample_length(64, 1024), 64);
    cr_expect_eq(sample_length(65, 1024), 128);
    cr_expect_eq(sample_length(65, 77), 77);
    cr_expect_eq(sample_length(3, 17), 17);
    cr_expect_eq(sample_length(5000, 1024), 1024);
}

Test(sample, no_tokens_is_the_prompt) {
    struct rig rig = {0};
    struct model model;
    int32_t text[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    options.tokens = 0;
    sample(&model, text, &options);
    cr_expect_arr_eq(text, prompt, (PROMPT) * sizeof(int32_t));
    cr_expect_eq(text[PROMPT], 0x7e7e7e7e);
    close_sampler(&rig, &model);
}

/* A model with fewer tokens than bytes samples only its own tokens; one with more samples only
 * bytes. */
Test(sample, tokens_are_bytes_of_the_vocabulary) {
    for (int vocabulary = 2; vocabulary <= 300; vocabulary += 149) {
        struct rig rig = {0};
        struct model model;
        int32_t text[TEXT];
        const int32_t one[] = {1};
        rig_config(&rig.config, CONFIG_PRECISION_FP32);
        rig.config.model.vocab_size = vocabulary;
        open_sampler(&rig, &model);
        struct sample_options options = {.prompt = one,
                                         .prompt_length = 1,
                                         .tokens = TEXT - 1,
                                         .temperature = 100,
                                         .top_p = 1,
                                         .vocabulary = 256};
        sample(&model, text, &options);
        for (int i = 0; i < TEXT; i++) cr_expect_lt((int)text[i], vocabulary);
        close_sampler(&rig, &model);
    }
}

/* Sampling in the middle of training uses the trainer's model: same text, same bits, and no more
 * workspace than the steps were planned with (the arena asserts that). */
static void check_inside_training(enum config_precision precision, int64_t micro_batch) {
    struct rig rig = {0}, alone = {0};
    struct model model;
    int32_t expected[TEXT], text[TEXT];
    rig_config(&rig.config, precision);
    rig.config.train.micro_batch_size = micro_batch;
    rig.config.sample.every = 1;
    rig_open(&rig, 1);
    rig_steps(&rig, 2);
    sharpen(&rig.trainer.model, 3);
    alone.config = rig.config;
    open_sampler(&alone, &model);
    float *weights = masters_values(&rig.trainer.model);
    masters_put(&model, weights);
    free(weights);
    struct sample_options options = greedy();
    options.temperature = 1;
    sample(&rig.trainer.model, text, &options);
    sample(&model, expected, &options);
    cr_expect_arr_eq(text, expected, (TEXT) * sizeof(int32_t), "%s",
                     config_precision_name(precision));
    rig_step(&rig);
    close_sampler(&alone, &model);
    rig_close(&rig);
}

Test(sample, the_trainers_model_makes_the_same_text) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++)
        for (int64_t batch = 1; batch <= 3; batch += 2)
            check_inside_training(rig_precisions[i], batch);
}

/* The library chooses its kernels by instruction set; each must work within the planned
 * workspace. */
static void check_instruction_set(const char *name) {
    setenv("ONEDNN_MAX_CPU_ISA", name, 1);
    setenv("DNNL_MAX_CPU_ISA", name, 1);
    for (size_t i = 0; i < COUNT(rig_precisions); i++) check_inside_training(rig_precisions[i], 1);
}

Test(sample, workspace_suffices_with_sse41) {
    check_instruction_set("SSE41");
}

Test(sample, workspace_suffices_with_avx2) {
    check_instruction_set("AVX2");
}

Test(sample, workspace_suffices_with_avx512) {
    check_instruction_set("AVX512_CORE");
}

/* The token that ends a text is counted, but is not part of the text. */
Test(sample, stops_at_the_end_of_text) {
    struct rig rig = {0};
    struct model model;
    int32_t text[TEXT], ended[TEXT];
    struct sample_result result;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    options.temperature = 5;
    sample(&model, text, &options);
    int64_t at = TEXT / 2;
    for (int64_t i = PROMPT; i < at; i++)
        if (text[i] == text[at]) at = i; /* first occurrence of its token */
    for (int i = 0; i < SAMPLE_ENDS_MAX; i++) {
        for (int k = 0; k < SAMPLE_ENDS_MAX; k++) options.ends[k] = VOCABULARY_MAX;
        options.ends[i] = text[at];
        options.end_count = i + 1;
        cr_expect_eq(sample_some(&model, ended, &options), at);
        cr_expect_arr_eq(text, ended, (size_t)at * sizeof *text);
    }
    cr_assert_eq(sample_tokens(&model, &result, &options, &rig.error), 0);
    cr_expect_eq(result.tokens, at - PROMPT + 1);
    close_sampler(&rig, &model);
}

/* A model that predicts NaN has no likeliest token. */
Test(sample, predictions_that_are_not_finite_are_an_error) {
    struct rig rig = {0};
    struct model model;
    struct sample_result result;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    sharpen(&model, NAN);
    struct sample_options options = greedy();
    cr_expect_eq(sample_tokens(&model, &result, &options, &rig.error), -1);
    cr_expect_not_null(strstr(rig.error.text, "not finite"), "%s", rig.error.text);
    close_sampler(&rig, &model);
}

Test(sample, only_tokens_of_the_vocabulary_given) {
    struct rig rig = {0};
    struct model model;
    int32_t text[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    options.temperature = 100;
    options.vocabulary = 3;
    sample(&model, text, &options);
    for (int i = PROMPT; i < TEXT; i++) cr_expect_lt((int)text[i], 3);
    close_sampler(&rig, &model);
}
