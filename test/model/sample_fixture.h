/* Shared by the tests of sampling: a small model opened for it, and a text collected. */
#pragma once

#include "data/util/error.h"
#include "model/core/model_initialize.h"
#include "test/model/trainer_fixture.h"

#include "model/pass/forward.h"
#include "model/task/sample.h"

enum { TEXT = 100, PROMPT = 5, GIVEN = 70 };

/* Weights large enough that predictions are far from uniform. */
static inline void sharpen(struct model *model, float factor) {
    float *weights = masters_values(model);
    for (int64_t i = 0; i < model->count; i++) weights[i] *= factor;
    masters_put(model, weights);
    free(weights);
}

/* Gives the embedding of token 0 one element, the largest of all after a norm. */
static inline void move_token_zero(struct model *model) {
    float *weights = masters_values(model);
    for (int64_t i = 0; i < model->shape.n_embd; i++)
        weights[model->list[0].offset + i] = i == 3 ? 1e3f : 0;
    masters_put(model, weights);
    free(weights);
}

/* Returns a window that is shorter than the texts: 8 to 29 tokens. */
static inline int64_t window_of(int family) {
    const int64_t window = 8 + 7 * (family % 4);
    cr_assert_lt(window, RIG_LENGTH);
    return window;
}

/* Gives a model a window, in every layer or the first alone; 0: its own. */
static inline void set_window(struct config *config, int family, int64_t window) {
    if (window == 0) return;
    config->model.window = window;
    config->model.window_pattern = family % 2 ? 2 : 0;
}

/* A model without a trainer, with random weights. plan: plans its passes. */
static inline void open_planned(struct rig *rig, struct model *model, enum model_purpose purpose,
                                void (*plan)(struct model *model)) {
    rig_open_backend(rig, test_device(), 1);
    cr_assert_eq(model_open(model, &rig->config, &rig->precision, &rig->be, purpose, &rig->error),
                 0, "%s", rig->error.text);
    backend_plan_begin(&rig->be);
    plan(model);
    cr_assert_eq(backend_plan_end(&rig->be, &rig->error), 0, "%s", rig->error.text);
    cr_assert_eq(model_allocate(model, &rig->error), 0, "%s", rig->error.text);
    model_initialize(model, 3);
    sharpen(model, 8);
}

/* The text that --sample prints. */
static inline void open_sampler(struct rig *rig, struct model *model) {
    open_planned(rig, model, PURPOSE_SAMPLING, sample_plan);
}

static inline void close_sampler(struct rig *rig, struct model *model) {
    model_close(model);
    backend_close(&rig->be);
}

static const int32_t prompt[PROMPT] = {5, 17, 60, 0, 33};

static inline struct sample_options greedy(void) {
    return (struct sample_options){
        .prompt = prompt, .prompt_length = PROMPT, .tokens = TEXT - PROMPT, .top_p = 1};
}

/* Collects a text: the prompt, then what is emitted. */
struct collector {
    int32_t *text;
    int64_t length;
};

static inline bool collect(void *context, int64_t text, int token) {
    struct collector *collector = context;
    (void)text;
    collector->text[collector->length++] = token;
    return true;
}

/* Returns the length of prompt and continuation. */
static inline int64_t sample_some(struct model *model, int32_t *text,
                                  const struct sample_options *options) {
    struct error error = {0};
    struct sample_result result;
    struct collector collector = {text, options->prompt_length};
    struct sample_options all = *options;
    memcpy(text, options->prompt, (size_t)options->prompt_length * sizeof *text);
    all.emit = collect;
    all.context = &collector;
    cr_assert_eq(sample_tokens(model, &result, &all, &error), 0, "%s", error.text);
    bool ended = result.tokens > collector.length - options->prompt_length;
    cr_expect_eq(result.tokens, collector.length - options->prompt_length + ended);
    return collector.length;
}

static inline void sample(struct model *model, int32_t *text,
                          const struct sample_options *options) {
    memset(text, 0x7e, TEXT * sizeof *text);
    cr_expect_eq(sample_some(model, text, options), options->prompt_length + options->tokens);
}
