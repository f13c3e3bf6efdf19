/* Texts of different prompts, which end at different times (sampler_generate_texts).
 *
 *   build/fast/tests --bench texts/different_prompts [--count 8]
 *       [--batch 8] [--rounds 9]
 *
 * The model has the shape of Qwen3 0.6B, in bf16 with random weights. Prompts of 5 to 200 tokens
 * and completions of 16 to 128 are those of test/external/sample_bench.py. Prints a line of
 * tokens/s for each round, of all tokens drawn over the whole time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/error.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/core/model_initialize.h"
#include "model/task/sample.h"
#include "test/kernels/bench.h"

enum { PROMPT_MAX = 200, TOKENS_MAX = 128, TEXTS = 8, TEXTS_MAX = 4096 };

static const int64_t lengths[TEXTS] = {5, 200, 20, 150, 40, 100, 10, 70};
static const int64_t tokens[TEXTS] = {128, 16, 96, 64, 112, 32, 80, 48};

struct counts {
    int64_t of[TEXTS_MAX];
};

static bool count_token(void *context, int64_t text, int token) {
    struct counts *counts = context;
    (void)token;
    return ++counts->of[text] < tokens[text % TEXTS];
}

static void open_model(struct model *model, struct backend *be, struct config *config) {
    struct error error = {0};
    struct precision precision;
    config_defaults(config);
    config_apply_preset(config, CONFIG_PRESET_QWEN3_0_6B);
    config->samples = bench_number("batch", TEXTS, TEXTS_MAX);
    config->precision = CONFIG_PRECISION_BF16;
    config->data.seq_len = PROMPT_MAX + TOKENS_MAX;
    const struct backend_options options = {.threads = 0};
    if (backend_open(be, &options, &error) ||
        precision_resolve(&precision, NULL, config, be, &error) ||
        model_open(model, config, &precision, be, PURPOSE_SAMPLING, &error))
        bench_die(error.text);
    backend_plan_begin(be);
    sample_plan(model);
    if (backend_plan_end(be, &error) || model_allocate(model, &error)) bench_die(error.text);
    model_initialize(model, 1);
}

static void different_prompts(void) {
    static struct counts counts;
    static struct sample_text texts[TEXTS_MAX];
    static int32_t prompts[TEXTS][PROMPT_MAX];
    struct error error;
    struct backend be;
    struct config config;
    struct model model;
    struct sampler sampler;
    struct sample_result result;
    const int64_t count = bench_number("count", TEXTS, TEXTS_MAX);
    open_model(&model, &be, &config);
    const struct sample_options options = {.temperature = 0.8,
                                           .top_p = 1,
                                           .tokens = TOKENS_MAX,
                                           .emit = count_token,
                                           .context = &counts};
    if (sampler_open(&sampler, &model, &options, &error)) bench_die(error.text);
    for (int i = 0; i < TEXTS; i++)
        for (int t = 0; t < PROMPT_MAX; t++) prompts[i][t] = i * 1000 + t * 37;
    for (int64_t i = 0; i < count; i++)
        texts[i] = (struct sample_text){prompts[i % TEXTS], lengths[i % TEXTS], (uint64_t)i};
    for (int round = 0; round < bench_rounds(); round++) {
        memset(&counts, 0, sizeof counts);
        if (sampler_generate_texts(&sampler, texts, count, &result, &error)) bench_die(error.text);
        printf("%.2f tokens/s: %lld tokens, prompts %.2f s, tokens %.2f s\n",
               (double)result.tokens / (result.prompt_seconds + result.tokens_seconds),
               (long long)result.tokens, result.prompt_seconds, result.tokens_seconds);
        fflush(stdout);
    }
    sampler_close(&sampler);
    model_close(&model);
    backend_close(&be);
}
BENCH_TABLE(texts, different_prompts, different_prompts)
