/* Text from a model: what is drawn, from how much context, and how bytes are shown. */
#include "test/model/trainer_fixture.h"

#include "model/forward.h"
#include "model/sample.h"

enum { TEXT = 100 };

/* Weights large enough that predictions are far from uniform. */
static void sharpen(struct gpt *gpt, float factor) {
    float *weights = rig_floats(gpt->be, &gpt->master);
    for (int64_t i = 0; i < gpt->count; i++) weights[i] *= factor;
    gpt->be->upload(gpt->be, gpt->master.data, weights, tensor_bytes(&gpt->master));
    gpt_refresh_lower(gpt);
    free(weights);
}

/* A gpt without a trainer, as --sample has. */
static void open_sampler(struct rig *rig, struct gpt *gpt) {
    rig_open_backend(rig, test_device(), 1);
    cr_assert_eq(gpt_open(gpt, &rig->config, &rig->precision, &rig->be, false, rig->error), 0, "%s",
                 rig->error);
    backend_plan_begin(&rig->be);
    sample_plan(gpt);
    cr_assert_eq(backend_plan_end(&rig->be, rig->error), 0, "%s", rig->error);
    cr_assert_eq(gpt_allocate(gpt, rig->error), 0, "%s", rig->error);
    gpt_initialize(gpt, 3);
    sharpen(gpt, 8);
}

static void close_sampler(struct rig *rig, struct gpt *gpt) {
    gpt_close(gpt);
    backend_close(&rig->be);
}

static const uint8_t prompt[] = {5, 17, 60, 0, 33};

static struct sample_options greedy(void) {
    return (struct sample_options){
        .prompt = prompt, .prompt_length = sizeof prompt, .tokens = TEXT - sizeof prompt};
}

static void sample(struct gpt *gpt, uint8_t *text, const struct sample_options *options) {
    char error[ERROR_MAX] = "";
    int64_t length = 0;
    memset(text, 0xee, TEXT);
    cr_assert_eq(sample_text(gpt, text, &length, options, error), 0, "%s", error);
    cr_expect_eq(length, options->prompt_length + options->tokens);
}

static void check_greedy(enum config_precision precision) {
    struct rig rig = {0};
    struct gpt gpt;
    uint8_t first[TEXT], second[TEXT];
    rig_config(&rig.config, precision);
    open_sampler(&rig, &gpt);
    struct sample_options options = greedy();
    sample(&gpt, first, &options);
    cr_expect_arr_eq(first, prompt, sizeof prompt);
    for (int i = 0; i < TEXT; i++) cr_expect_lt(first[i], RIG_VOCABULARY);
    options.seed = 99;
    options.stream = 7;
    options.top_k = 5;
    sample(&gpt, second, &options);
    cr_expect_arr_eq(first, second, TEXT, "temperature 0 looked at the seed or at top_k");
    options.temperature = 2;
    options.top_k = 1;
    sample(&gpt, second, &options);
    cr_expect_arr_eq(first, second, TEXT, "top_k 1 is not the likeliest");
    close_sampler(&rig, &gpt);
}

Test(sample, greedy_is_the_same_every_time_and_is_top_1) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++) check_greedy(rig_precisions[i]);
}

/* A model of zeros finds all tokens equally likely, and 16-bit logits are often equal. */
Test(sample, top_k_keeps_k_tokens_among_equals) {
    struct rig rig = {0};
    struct gpt gpt;
    uint8_t text[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &gpt);
    sharpen(&gpt, 0);
    struct sample_options options = greedy();
    options.temperature = 1;
    for (int64_t k = 1; k <= 4; k++) {
        bool seen[256] = {false};
        int64_t distinct = 0;
        options.top_k = k;
        sample(&gpt, text, &options);
        for (size_t i = sizeof prompt; i < TEXT; i++) {
            distinct += !seen[text[i]];
            seen[text[i]] = true;
        }
        cr_expect_eq(distinct, k, "top_k %d drew %d different tokens", (int)k, (int)distinct);
    }
    close_sampler(&rig, &gpt);
}

/* Whoever sets the flag gets what was made so far. */
Test(sample, stops_when_asked) {
    struct rig rig = {0};
    struct gpt gpt;
    uint8_t text[TEXT];
    int64_t length = 0;
    volatile sig_atomic_t stop = 1;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &gpt);
    struct sample_options options = greedy();
    options.stop = &stop;
    cr_assert_eq(sample_text(&gpt, text, &length, &options, rig.error), 0, "%s", rig.error);
    cr_expect(length >= (int64_t)sizeof prompt && length <= (int64_t)sizeof prompt + 1);
    cr_expect_arr_eq(text, prompt, sizeof prompt);
    stop = 0;
    cr_assert_eq(sample_text(&gpt, text, &length, &options, rig.error), 0, "%s", rig.error);
    cr_expect_eq(length, TEXT);
    close_sampler(&rig, &gpt);
}

Test(sample, seed_and_stream_make_the_text) {
    struct rig rig = {0};
    struct gpt gpt;
    uint8_t first[TEXT], second[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &gpt);
    struct sample_options options = greedy();
    options.temperature = 1;
    options.seed = 1;
    sample(&gpt, first, &options);
    sample(&gpt, second, &options);
    cr_expect_arr_eq(first, second, TEXT);
    options.seed = 2;
    sample(&gpt, second, &options);
    cr_expect_arr_neq(first, second, TEXT, "another seed, the same text");
    options.seed = 1;
    options.stream = 1;
    sample(&gpt, second, &options);
    cr_expect_arr_neq(first, second, TEXT, "another stream, the same text");
    close_sampler(&rig, &gpt);
}

/* The probabilities of the token after the prompt, by the book. */
static void expected_distribution(struct gpt *gpt, double *p, double temperature, int64_t top_k) {
    int32_t tokens[RIG_LENGTH] = {0};
    double total = 0;
    for (size_t i = 0; i < sizeof prompt; i++) tokens[i] = prompt[i];
    gpt_set_batch(gpt, 1, RIG_LENGTH);
    gpt->be->upload(gpt->be, gpt->activations.tokens, tokens, sizeof tokens);
    gpt_forward(gpt);
    gpt_logits(gpt, sizeof prompt - 1);
    float *logits = rig_floats(gpt->be, &gpt->activations.logits);
    for (int v = 0; v < RIG_VOCABULARY; v++) {
        int64_t larger = 0;
        for (int w = 0; w < RIG_VOCABULARY; w++) larger += logits[w] > logits[v];
        p[v] = top_k == 0 || larger < top_k ? exp(logits[v] / temperature) : 0;
        total += p[v];
    }
    for (int v = 0; v < RIG_VOCABULARY; v++) p[v] /= total;
    free(logits);
}

/* Pearson's test on tokens that are expected at least 5 times; the others count as one. */
static void check_distribution(struct gpt *gpt, double temperature, int64_t top_k) {
    enum { DRAWS = 3000 };
    double p[RIG_VOCABULARY], chi_square = 0, rest = 0;
    int counts[RIG_VOCABULARY] = {0}, rest_count = 0, classes = 0;
    uint8_t text[sizeof prompt + 1];
    expected_distribution(gpt, p, temperature, top_k);
    struct sample_options options = greedy();
    options.tokens = 1;
    options.temperature = temperature;
    options.top_k = top_k;
    char error[ERROR_MAX] = "";
    int64_t length;
    for (int i = 0; i < DRAWS; i++) {
        options.seed = (uint64_t)i;
        cr_assert_eq(sample_text(gpt, text, &length, &options, error), 0, "%s", error);
        cr_assert_lt(text[sizeof prompt], RIG_VOCABULARY);
        counts[text[sizeof prompt]]++;
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
    cr_expect_geq(classes, top_k ? 2 : 5, "the distribution is too sharp to test");
    /* Mean `classes`, variance 2 * classes: five deviations. */
    cr_expect_lt(chi_square, classes + 5 * sqrt(2.0 * classes), "T %g, top %d: %g of %d classes",
                 temperature, (int)top_k, chi_square, classes);
}

Test(sample, draws_follow_the_softmax) {
    struct rig rig = {0};
    struct gpt gpt;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 1;
    open_sampler(&rig, &gpt);
    check_distribution(&gpt, 1, 0);
    check_distribution(&gpt, 1.7, 4);
    close_sampler(&rig, &gpt);
}

/* Nearly flat, so that every token that may come does. */
static void check_top_k(struct gpt *gpt, int64_t top_k) {
    double p[RIG_VOCABULARY];
    bool seen[RIG_VOCABULARY] = {false};
    uint8_t text[sizeof prompt + 1];
    char error[ERROR_MAX] = "";
    int64_t length;
    expected_distribution(gpt, p, 100, top_k);
    struct sample_options options = greedy();
    options.tokens = 1;
    options.temperature = 100;
    options.top_k = top_k;
    for (uint64_t i = 0; i < 12 * (uint64_t)top_k; i++) {
        options.seed = i;
        cr_assert_eq(sample_text(gpt, text, &length, &options, error), 0, "%s", error);
        seen[text[sizeof prompt]] = true;
    }
    for (int v = 0; v < RIG_VOCABULARY; v++)
        cr_expect_eq(seen[v], p[v] > 0, "top %d: token %d %s", (int)top_k, v,
                     seen[v] ? "came" : "never came");
}

Test(sample, top_k_is_the_k_likeliest) {
    struct rig rig = {0};
    struct gpt gpt;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_layer = 1;
    open_sampler(&rig, &gpt);
    for (int64_t k = 1; k <= RIG_VOCABULARY; k += 1 + k / 4) check_top_k(&gpt, k);
    close_sampler(&rig, &gpt);
}

/* Only the last seq_len tokens count, so cutting the prompt there changes nothing. */
Test(sample, context_longer_than_the_window_keeps_its_end) {
    struct rig rig = {0};
    struct gpt gpt;
    uint8_t whole[TEXT], cut[TEXT], given[70];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &gpt);
    for (size_t i = 0; i < sizeof given; i++) given[i] = (uint8_t)(i * 7 % RIG_VOCABULARY);
    struct sample_options options = {
        .prompt = given, .prompt_length = sizeof given, .tokens = TEXT - sizeof given};
    sample(&gpt, whole, &options);
    options.prompt = given + sizeof given - RIG_LENGTH;
    options.prompt_length = RIG_LENGTH;
    sample(&gpt, cut, &options);
    cr_expect_arr_eq(whole, given, sizeof given);
    cr_expect_arr_eq(whole + sizeof given - RIG_LENGTH, cut, RIG_LENGTH + TEXT - sizeof given);
    close_sampler(&rig, &gpt);
}

Test(sample, no_tokens_is_the_prompt) {
    struct rig rig = {0};
    struct gpt gpt;
    uint8_t text[TEXT];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &gpt);
    struct sample_options options = greedy();
    options.tokens = 0;
    sample(&gpt, text, &options);
    cr_expect_arr_eq(text, prompt, sizeof prompt);
    cr_expect_eq(text[sizeof prompt], 0xee);
    close_sampler(&rig, &gpt);
}

/* A model with fewer tokens than bytes never makes others; one with more never leaves the bytes. */
Test(sample, tokens_are_bytes_of_the_vocabulary) {
    for (int vocabulary = 2; vocabulary <= 300; vocabulary += 149) {
        struct rig rig = {0};
        struct gpt gpt;
        uint8_t text[TEXT];
        const uint8_t one[] = {1};
        rig_config(&rig.config, CONFIG_PRECISION_FP32);
        rig.config.model.vocab_size = vocabulary;
        open_sampler(&rig, &gpt);
        struct sample_options options = {
            .prompt = one, .prompt_length = 1, .tokens = TEXT - 1, .temperature = 100};
        sample(&gpt, text, &options);
        for (int i = 0; i < TEXT; i++) cr_expect_lt((int)text[i], vocabulary);
        close_sampler(&rig, &gpt);
    }
}

/* Sampling in the middle of training uses the trainer's model: same text, same bits, and no more
 * workspace than the steps were planned with (the arena asserts that). */
static void check_inside_training(enum config_precision precision, int64_t micro_batch) {
    struct rig rig = {0}, alone = {0};
    struct gpt gpt;
    uint8_t expected[TEXT], text[TEXT];
    rig_config(&rig.config, precision);
    rig.config.train.micro_batch_size = micro_batch;
    rig.config.sample.every = 1;
    rig_open(&rig, 1);
    rig_steps(&rig, 2);
    sharpen(&rig.trainer.gpt, 3);
    alone.config = rig.config;
    open_sampler(&alone, &gpt);
    float *weights = rig_floats(&rig.be, &rig.trainer.gpt.master);
    alone.be.upload(&alone.be, gpt.master.data, weights, tensor_bytes(&gpt.master));
    gpt_refresh_lower(&gpt);
    free(weights);
    struct sample_options options = greedy();
    options.temperature = 1;
    sample(&rig.trainer.gpt, text, &options);
    sample(&gpt, expected, &options);
    cr_expect_arr_eq(text, expected, TEXT, "%s", config_precision_name(precision));
    rig_step(&rig);
    close_sampler(&alone, &gpt);
    rig_close(&rig);
}

Test(sample, the_trainers_model_makes_the_same_text) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++)
        for (int64_t batch = 1; batch <= 3; batch += 2)
            check_inside_training(rig_precisions[i], batch);
}

/* The library chooses its kernels by instruction set; each must get by with what was planned. */
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

static void expect_shown(const char *bytes, size_t length, const char *expected) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    sample_print(out, (const uint8_t *)bytes, (int64_t)length);
    fclose(out);
    cr_expect_str_eq(text, expected);
    free(text);
}

#define SHOWS(bytes, expected) expect_shown(bytes, sizeof(bytes) - 1, expected)
#define BAD                    "\xef\xbf\xbd"

Test(sample, prints_what_is_valid_as_it_is) {
    SHOWS("", "");
    SHOWS("Once\tupon\na time ~", "Once\tupon\na time ~");
    SHOWS("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb3", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb3");
    SHOWS("\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf",
          "\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf");
}

Test(sample, shows_controls_as_replacement) {
    SHOWS("a\0b", "a" BAD "b");
    SHOWS("\x1b[31mred\r", BAD "[31mred" BAD);
    SHOWS("\x7f\x08\x0b", BAD BAD BAD);
}

/* U+0080 to U+009F: terminals obey some of them, such as U+009B, as they obey ESC [. */
Test(sample, shows_two_byte_controls_as_replacement) {
    char *text = NULL;
    size_t size;
    for (int byte = 0x80; byte <= 0x9f; byte++) {
        const uint8_t control[] = {'x', 0xc2, (uint8_t)byte, 'y'};
        FILE *out = open_memstream(&text, &size);
        sample_print(out, control, sizeof control);
        fclose(out);
        cr_expect_null(strchr(text, 0xc2), "U+%04X reaches the terminal", (unsigned)byte);
        cr_expect(text[0] == 'x' && text[strlen(text) - 1] == 'y');
        free(text);
    }
}

Test(sample, shows_invalid_utf8_as_replacement) {
    SHOWS("\x80z", BAD "z");
    SHOWS("\xff\xfe", BAD BAD);
    SHOWS("\xc3", BAD);
    SHOWS("\xe2\x82", BAD BAD);
    SHOWS("\xc3(", BAD "(");
    SHOWS("\xc0\xaf", BAD BAD);
    SHOWS("\xe0\x9f\xbf", BAD BAD BAD);
    SHOWS("\xed\xa0\x80", BAD BAD BAD);
    SHOWS("\xf0\x8f\xbf\xbf", BAD BAD BAD BAD);
    SHOWS("\xf4\x90\x80\x80", BAD BAD BAD BAD);
    SHOWS("\xf5\x80\x80\x80", BAD BAD BAD BAD);
    SHOWS("\xe2\x82\xac\xe2\x82", "\xe2\x82\xac" BAD BAD);
}

/* Whatever the bytes, the result is text a terminal can take. */
Test(sample, any_bytes_become_valid_text) {
    for (uint64_t round = 0; round < 200; round++) {
        uint8_t bytes[64];
        char *text = NULL;
        size_t size, length = random_bits(1, 0, round) % sizeof bytes;
        for (size_t i = 0; i < length; i++)
            bytes[i] = (uint8_t)random_bits(2 + round, 0, i) | (uint8_t)(round % 2 ? 0x80 : 0);
        FILE *out = open_memstream(&text, &size);
        sample_print(out, bytes, (int64_t)length);
        fclose(out);
        char *again = NULL;
        size_t again_size;
        out = open_memstream(&again, &again_size);
        sample_print(out, (uint8_t *)text, (int64_t)size);
        fclose(out);
        cr_expect_str_eq(again, text, "printing what was printed changed it");
        for (size_t i = 0; i < size; i++)
            cr_expect((uint8_t)text[i] >= 32 || text[i] == '\n' || text[i] == '\t');
        free(text);
        free(again);
    }
}
