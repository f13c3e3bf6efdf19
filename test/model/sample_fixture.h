/* Shared by the tests of sampling: a small model opened for it, and a text collected. */
#pragma once

#include "data/util/error.h"
#include "model/core/gpt_initialize.h"
#include "test/model/trainer_fixture.h"

#include "model/core/forward.h"
#include "model/core/sample.h"

enum { TEXT = 100, PROMPT = 5, GIVEN = 70 };

/* Weights large enough that predictions are far from uniform. */
static inline void sharpen(struct gpt *gpt, float factor) {
    float *weights = masters_values(gpt);
    for (int64_t i = 0; i < gpt->count; i++) weights[i] *= factor;
    masters_put(gpt, weights);
    free(weights);
}

/* A gpt without a trainer, with random weights. plan: plans its passes. */
static inline void open_planned(struct rig *rig, struct gpt *gpt, enum gpt_use use,
                                void (*plan)(struct gpt *gpt)) {
    rig_open_backend(rig, test_device(), 1);
    cr_assert_eq(gpt_open(gpt, &rig->config, &rig->precision, &rig->be, use, &rig->error), 0, "%s",
                 rig->error.text);
    backend_plan_begin(&rig->be);
    plan(gpt);
    cr_assert_eq(backend_plan_end(&rig->be, &rig->error), 0, "%s", rig->error.text);
    cr_assert_eq(gpt_allocate(gpt, &rig->error), 0, "%s", rig->error.text);
    gpt_initialize(gpt, 3);
    sharpen(gpt, 8);
}

/* The text that --sample prints. */
static inline void open_sampler(struct rig *rig, struct gpt *gpt) {
    open_planned(rig, gpt, GPT_SAMPLING, sample_plan);
}

static inline void close_sampler(struct rig *rig, struct gpt *gpt) {
    gpt_close(gpt);
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
static inline int64_t sample_some(struct gpt *gpt, int32_t *text,
                                  const struct sample_options *options) {
    struct error error = {0};
    struct sample_result result;
    struct collector collector = {text, options->prompt_length};
    struct sample_options all = *options;
    memcpy(text, options->prompt, (size_t)options->prompt_length * sizeof *text);
    all.emit = collect;
    all.context = &collector;
    cr_assert_eq(sample_tokens(gpt, &result, &all, &error), 0, "%s", error.text);
    bool ended = result.tokens > collector.length - options->prompt_length;
    cr_expect_eq(result.tokens, collector.length - options->prompt_length + ended);
    return collector.length;
}

static inline void sample(struct gpt *gpt, int32_t *text, const struct sample_options *options) {
    memset(text, 0x7e, TEXT * sizeof *text);
    cr_expect_eq(sample_some(gpt, text, options), options->prompt_length + options->tokens);
}
