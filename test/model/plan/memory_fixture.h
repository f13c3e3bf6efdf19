/* A tiny model for tests of memory plans. */
#pragma once

#include "test/model/trainer_fixture.h"

#include "model/plan/memory_plan.h"

static struct rig rig; /* the rig of the test */

static inline void close_rig(void) {
    if (rig.be.functions) backend_close(&rig.be);
    rig = (struct rig){0};
}

enum { LAYERS = 2, WIDTH = 128, TOKENS = 64, VOCABULARY = 300 };

static const enum recompute levels[] = {RECOMPUTE_NONE, RECOMPUTE_GELU, RECOMPUTE_LAYER};

/* Opens a run whose sizes are multiples of the alignments, so that its memory has no gaps. */
static inline void open_tiny(enum config_precision precision) {
    close_rig();
    rig_config(&rig.config, precision);
    rig.config.model.n_layer = LAYERS;
    rig.config.model.n_embd = WIDTH;
    rig.config.model.vocab_size = VOCABULARY;
    rig.config.train.micro_batch_size = TOKENS / RIG_LENGTH;
    rig.config.train.grad_accum_steps = 1;
    rig_open_backend(&rig, test_device(), 2);
}

static inline struct memory_plan plan_of(const struct config *config) {
    struct memory_plan plan;
    cr_assert_eq(memory_plan_of(&plan, config, &rig.be, &rig.error), 0, "%s", rig.error.text);
    return plan;
}

static inline size_t total_of(const struct config *config) {
    struct memory_plan plan = plan_of(config);
    return memory_total(&plan);
}
