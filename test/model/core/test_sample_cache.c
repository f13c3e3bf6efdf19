/* Decoding token by token with a key-value cache equals one pass over the whole context. */
#include "model/config/config_keys.h"
#include "test/model/sample_fixture.h"

/* Logits of row `row` of a context, by one pass over all of it. */
static float *whole_logits(struct gpt *gpt, const int32_t *tokens, int64_t row) {
    gpt_set_batch(gpt, 1, RIG_LENGTH);
    backend_upload(gpt->be, gpt->activations.tokens, tokens, RIG_LENGTH * sizeof *tokens);
    gpt_forward(gpt);
    gpt_logits(gpt, row, 1);
    struct tensor first = tensor_range(&gpt->activations.logits, 0, gpt->shape.padded_vocab);
    return rig_floats(gpt->be, &first);
}

/* Computes the logits by a pass over part of the text, then token by token. */
static float *decoded_logits(struct gpt *gpt, const int32_t *tokens, int64_t first, int64_t row) {
    struct backend *be = gpt->be;
    int64_t added_row = 0;
    gpt_set_batch(gpt, 1, RIG_LENGTH);
    backend_upload(be, gpt->activations.tokens, tokens, (size_t)first * sizeof *tokens);
    gpt_prefill(gpt, first, 0);
    for (int64_t i = first; i <= row; i++) {
        _Alignas(struct decode_keys) char memory[64];
        struct added_arrays arrays = added_arrays_in(memory, 1);
        arrays.keys[0] = (struct decode_keys){.count = (int32_t)i + 1};
        arrays.tokens[0] = tokens[i];
        arrays.positions[0] = (int32_t)i;
        backend_upload(be, gpt->added, memory, added_bytes(1));
        added_row = gpt_extend(gpt, &(struct added){1, i, 1, i + 1, i + 1});
    }
    gpt_logits(gpt, added_row, 1);
    struct tensor logits = tensor_range(&gpt->activations.logits, 0, gpt->shape.padded_vocab);
    return rig_floats(be, &logits);
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
    struct gpt gpt;
    int32_t tokens[RIG_LENGTH];
    rig_config(&rig.config, precision);
    rig.config.fp8.recipe =
        CONFIG_RECIPE_ROW; /* other recipes' scales depend on the number of rows */
    set_family(&rig.config, family);
    rig.config.model.window = window;
    rig.config.model.window_pattern = family % 2 ? 2 : 0; /* only the first layer has it */
    open_sampler(&rig, &gpt);
    for (int i = 0; i < RIG_LENGTH; i++) tokens[i] = i * 11 % RIG_VOCABULARY;
    for (int64_t row = 1; row < RIG_LENGTH; row += 20) {
        for (int64_t first = 1; first <= row; first += 13) {
            float *whole = whole_logits(&gpt, tokens, row);
            float *decoded = decoded_logits(&gpt, tokens, first, row);
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
    close_sampler(&rig, &gpt);
}

/* The tensor scale of nvfp4 depends on the number of rows. */
Test(sample_cache, the_cache_gives_the_logits_of_a_whole_pass) {
    for (size_t i = 0; i < COUNT(rig_precisions) && rig_precisions[i] != CONFIG_PRECISION_NVFP4;
         i++)
        for (int family = 0; family < FAMILIES; family++)
            for (int late = 0; late < 2; late++)
                if (!test_leaves_out(i + (size_t)(family + late)))
                    check_cache(rig_precisions[i], family, late ? 1 + 7 * family : 0);
}

/* Greedy text far beyond the window, compared with passes over the whole context. Whenever the
 * context is full, it is cut to its newer half and the token to be read. */
Test(sample_cache, a_full_context_keeps_its_newer_half) {
    enum { LONG = 3 * RIG_LENGTH };
    struct rig rig = {0};
    struct gpt gpt;
    int32_t text[LONG], expected[LONG];
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    open_sampler(&rig, &gpt);
    struct sample_options options = greedy();
    options.tokens = LONG - PROMPT;
    cr_assert_eq(sample_some(&gpt, text, &options), LONG);
    int64_t first = 0;
    memcpy(expected, prompt, sizeof prompt);
    for (int64_t at = PROMPT; at < LONG; at++) {
        int32_t tokens[RIG_LENGTH] = {0};
        if (at - first > RIG_LENGTH) first = at - 1 - RIG_LENGTH / 2;
        for (int64_t i = first; i < at; i++) tokens[i - first] = expected[i];
        float *logits = whole_logits(&gpt, tokens, at - first - 1);
        int best = 0;
        for (int v = 1; v < RIG_VOCABULARY; v++)
            if (logits[v] > logits[best]) best = v;
        expected[at] = (int32_t)best;
        free(logits);
    }
    cr_expect_arr_eq(text, expected, sizeof text);
    close_sampler(&rig, &gpt);
}
