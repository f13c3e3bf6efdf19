/* Decoding token by token with a key-value cache equals one pass over the whole context. */
#include "model/config/config_keys.h"
#include "test/model/sample_fixture.h"

/* Logits of row `row` of a context, by one pass over all of it. */
static float *whole_logits(struct model *model, const int32_t *tokens, int64_t row) {
    rig_evaluate(model, tokens, NULL, 1, RIG_LENGTH);
    model_logits(model, row, 1);
    struct tensor first = tensor_range(&model->activations.logits, 0, model->shape.padded_vocab);
    return rig_floats(model->be, &first);
}

/* Computes the logits by a pass over part of the text, then token by token. */
static float *decoded_logits(struct model *model, const int32_t *tokens, int64_t first,
                             int64_t row) {
    struct error error = {0};
    struct batch whole = rig_batch(model->be, tokens, NULL, 1, RIG_LENGTH), added;
    const struct batch_format format = {1, RIG_LENGTH, .arrays = BATCH_POSITIONS | BATCH_KEYS};
    struct pass pass = {.model = model, .kind = PASS_PREFILL, .batch = whole.sent, .rows = first};
    cr_assert_eq(batch_open(&added, model->be, &format, &error), 0, "%s", error.text);
    model_forward(&pass);
    for (int64_t i = first; i <= row; i++) {
        added.host.keys[0] = (struct decode_keys){.count = (int32_t)i + 1};
        added.host.tokens[0] = tokens[i];
        added.host.positions[0] = (int32_t)i;
        batch_upload(&added);
        pass = (struct pass){.model = model,
                             .kind = PASS_EXTEND,
                             .batch = added.sent,
                             .rows = 1,
                             .cache_row = i,
                             .decode = {.stride = 1, .least = i + 1, .longest = i + 1}};
        model_forward(&pass);
    }
    model_logits(model, pass_first_row(&pass), 1);
    struct tensor logits = tensor_range(&model->activations.logits, 0, model->shape.padded_vocab);
    batch_close(&whole);
    batch_close(&added);
    return rig_floats(model->be, &logits);
}

/* Sums in another order, relative to the largest logit: in fp32 1.1e-5 at most over all families
 * and CPU levels ("mixed too"; the others stay below 2e-6). A 16-bit intermediate may round to
 * its neighbour, 2^-8 or 2^-11 of it, in each of a few tensors; an fp8 one by 2^-4 of it. */
static double cache_tolerance(enum config_precision precision) {
    if (precision == CONFIG_PRECISION_FP32) return 3e-5;
    if (precision == CONFIG_PRECISION_FP8) return 4.0 / 16;
    return precision == CONFIG_PRECISION_BF16 ? 4.0 / 256 : 4.0 / 2048;
}

static void check_cache(enum config_precision precision, int family, int64_t window) {
    struct rig rig = {0};
    struct model model;
    int32_t tokens[RIG_LENGTH];
    rig_config(&rig.config, precision);
    rig.config.fp8.recipe =
        CONFIG_RECIPE_ROW; /* other recipes' scales depend on the number of rows */
    set_family(&rig.config, family);
    set_window(&rig.config, family, window);
    open_sampler(&rig, &model);
    for (int i = 0; i < RIG_LENGTH; i++) tokens[i] = i * 11 % RIG_VOCABULARY;
    for (int64_t row = 1; row < RIG_LENGTH; row += 20) {
        for (int64_t first = 1; first <= row; first += 13) {
            float *whole = whole_logits(&model, tokens, row);
            float *decoded = decoded_logits(&model, tokens, first, row);
            double largest = 0, difference = 0;
            for (int v = 0; v < RIG_VOCABULARY; v++) {
                double size = fabs((double)whole[v]);
                double error = fabs((double)whole[v] - (double)decoded[v]);
                /* Not fmax(): two of them in a loop break gcc 12 for arm64. */
                if (size > largest) largest = size;
                if (error > difference || isnan(error)) difference = error;
            }
            cr_expect_leq(difference, cache_tolerance(precision) * largest,
                          "%s, %d tokens at once, then up to %d: %g of %g",
                          config_precision_name(precision), (int)first, (int)row, difference,
                          largest);
            free(whole);
            free(decoded);
        }
    }
    close_sampler(&rig, &model);
}

/* The tensor scale of nvfp4 depends on the number of rows. */
Test(sample_cache, the_cache_gives_the_logits_of_a_whole_pass) {
    for (size_t i = 0; i < COUNT(rig_precisions) && rig_precisions[i] != CONFIG_PRECISION_NVFP4;
         i++)
        for (int family = 0; family < FAMILIES; family++)
            for (int late = 0; late < 2; late++)
                if (!test_leaves_out(i + (size_t)(family + late)))
                    check_cache(rig_precisions[i], family, late ? window_of(family) : 0);
}

/* Greedy text far beyond the window, compared with passes over the whole context. Whenever the
 * context is full, it is cut to its newer half and the token to be read. */
Test(sample_cache, a_full_context_keeps_its_newer_half) {
    enum { LONG = 3 * RIG_LENGTH };
    struct rig rig = {0};
    struct model model;
    int32_t text[LONG], expected[LONG];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &model);
    struct sample_options options = greedy();
    options.tokens = LONG - PROMPT;
    cr_assert_eq(sample_some(&model, text, &options), LONG);
    int64_t first = 0;
    memcpy(expected, prompt, sizeof prompt);
    for (int64_t at = PROMPT; at < LONG; at++) {
        int32_t tokens[RIG_LENGTH] = {0};
        if (at - first > RIG_LENGTH) first = at - 1 - RIG_LENGTH / 2;
        for (int64_t i = first; i < at; i++) tokens[i - first] = expected[i];
        float *logits = whole_logits(&model, tokens, at - first - 1);
        int best = 0;
        for (int v = 1; v < RIG_VOCABULARY; v++)
            if (logits[v] > logits[best]) best = v;
        expected[at] = (int32_t)best;
        free(logits);
    }
    cr_expect_arr_eq(text, expected, sizeof text);
    close_sampler(&rig, &model);
}
