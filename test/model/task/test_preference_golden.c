/* Preference tuning compared with TRL: ten steps of each objective on pairs that fill sequences of
 * 77 rows, with and without adapters. A step has five pairs, three in its first micro-batch and two
 * in its second. See test/golden/fixtures.md. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/pairs.h"
#include "kernels/open/backend_open.h"
#include "model/task/reference.h"
#include "test/device.h"
#include "test/model/core/golden_model.h"
#include "test/model/masters.h"
#include "test/preference_runs.h"

enum { PAIRS = 5, ALL_PAIRS = STEPS * PAIRS, SEQUENCES = STEPS * MICRO_BATCHES * BATCH };

/* How far a run may be from TRL's run of the same precision. In fp32 both sum in their own order.
 * In 16 bit a loss of DPO or KTO has the roundings of all tokens of its answers: TRL's losses are
 * up to 0.008 (bf16) and 0.0007 (fp16) of themselves from those in float64. For other bounds see
 * gpt_golden_bounds.h: they leave at least a third beyond the largest difference. */
static const struct limits {
    enum config_precision precision;
    const char *name;
    double loss;     /* relative */
    double norm;     /* relative */
    double logps;    /* relative, of means over the answers of a side */
    double rewards;  /* the same, relative to beta times the log-probabilities they come from */
    double gradient; /* |difference| / |gradient|, Euclidean, of each tensor */
    double movement; /* |difference of final weights| / |what TRL's training changed| */
} all_limits[] = {
    {CONFIG_PRECISION_FP32, "fp32", 5e-6, 5e-6, 1e-6, 1e-6, 5e-6, 2e-5},
    {CONFIG_PRECISION_BF16, "bf16", 1.2e-2, 1.2e-2, 1.5e-3, 2e-3, 5e-2, 0.1},
    {CONFIG_PRECISION_FP16, "fp16", 2e-3, 2e-3, 3e-4, 3e-4, 7e-3, 0.04},
};

struct setup {
    const struct preference_run *run;
    const struct limits *limits;
    enum family family;
    struct fixture file, base; /* base has the initial weights */
    char prefix[64];           /* of the run's tensors */
    struct config config;
    struct backend be;
    struct tokens tokens;
    struct loader loader;
    struct trainer trainer;
    struct error error;
};

#include "test/model/task/golden_steps.h"

static void make_tokens(struct setup *s) {
    const bool labelled = s->run->rule.objective == PREFERENCE_KTO;
    const int32_t *given = find(s, "tokens", SAFETENSORS_I32);
    const int32_t *lengths = find(s, "lengths", SAFETENSORS_I32);
    const int32_t *prompts = find(s, "prompts", SAFETENSORS_I32);
    const int32_t *desirable = find(s, "desirable", SAFETENSORS_I32);
    size_t count = 0, at = 0;
    for (int i = 0; i < 2 * ALL_PAIRS; i++) count += (size_t)lengths[i];
    int32_t *owned = malloc(count * sizeof *owned);
    uint8_t *marks = calloc(count, 1);
    memcpy(owned, given, count * sizeof *owned);
    for (int i = 0; i < 2 * ALL_PAIRS; at += (size_t)lengths[i++]) {
        const bool rejected = i % 2, label = labelled && (rejected || !desirable[i / 2]);
        marks[at] = TOKEN_BEGINS | (rejected ? TOKEN_REJECTED : 0) | (label ? TOKEN_LABEL : 0);
        for (int t = prompts[i / 2]; t < lengths[i]; t++) marks[at + (size_t)t] |= TOKEN_COUNTS;
    }
    cr_assert_eq(tokens_from_memory_marked(&s->tokens, owned, marks, count, "the pairs", &s->error),
                 0, "%s", s->error.text);
    free(marks);
}

static void make_config(struct setup *s, bool lora) {
    struct config *config = &s->config;
    const struct preference_rule *rule = &s->run->rule;
    config_defaults(config);
    config->precision = s->limits->precision;
    make_model(config, s->family);
    make_lora_sizes(config);
    if (lora) make_lora(config, s->family == GPT2 ? "c_attn c_fc c_proj" : "all-linear");
    make_training(config);
    config->data.seq_len = LORA_LENGTH;
    config->data.isolate = true;
    config->masked_share = 0.5; /* so that the head reads the rows that count alone */
    /* The configuration's first objective has no pairs. */
    config->train.objective = (enum config_objective)((int)rule->objective + 1);
    config->objective.beta = (double)rule->beta;
    config->objective.label_smoothing = (double)rule->label_smoothing;
    config->objective.nll_weight = (double)rule->nll_weight;
    config->objective.gamma = (double)rule->gamma;
    config->objective.desirable_weight = (double)rule->desirable_weight;
    config->objective.undesirable_weight = (double)rule->undesirable_weight;
}

/* Fills the sequences again, each with the next pairs as long as they fit: TRL's steps have the
 * pairs in their order. */
static void fill_in_order(struct loader *loader) {
    struct packing *packing = &loader->packing;
    uint32_t used = LORA_LENGTH;
    arrsetlen(packing->first, 0);
    for (uint32_t i = 0; i < packing_units(packing); i++) {
        struct packed_piece *pair = &packing->pieces[PREFERENCE_SIDES * i];
        const uint32_t rows = pair[0].rows + pair[1].rows;
        pair->next = PIECE_NONE;
        if (used + rows <= LORA_LENGTH) pair[-PREFERENCE_SIDES].next = PREFERENCE_SIDES * i;
        else arrput(packing->first, PREFERENCE_SIDES * i);
        used = rows + (used + rows <= LORA_LENGTH ? used : 0);
    }
    loader->sequence_count = arrlenu(packing->first);
}

static void open_setup(struct setup *s, enum family family, const struct preference_run *run,
                       bool lora, const struct limits *limits, bool graphs) {
    const char *name = family == GPT2 ? "gpt" : "llama";
    char path[128];
    struct precision precision;
    *s = (struct setup){.run = run, .limits = limits, .family = family};
    snprintf(s->prefix, sizeof s->prefix, "%s%s_%s", lora ? "lora_" : "", run->name, limits->name);
    snprintf(path, sizeof path, "test/golden/%s_preference.safetensors", name);
    fixture_open(&s->file, path);
    snprintf(path, sizeof path, "test/golden/%s_lora_fp32.safetensors", name);
    fixture_open(&s->base, path);
    make_config(s, lora);
    make_tokens(s);
    const struct loader_options options = {.seq_len = LORA_LENGTH,
                                           .vocab_size = VOCABULARY,
                                           .kind = &pairs_loader,
                                           .longest = LORA_LENGTH,
                                           .prompts = run->rule.objective == PREFERENCE_ORPO};
    cr_assert_eq(loader_open(&s->loader, &s->tokens, &options, &s->error), 0, "%s", s->error.text);
    fill_in_order(&s->loader);
    cr_assert_eq(s->loader.sequence_count, SEQUENCES);
    cr_assert_eq(s->loader.packing.cut, 0);
    const struct backend_options backend = {
        .device = test_device(), .threads = 2, .graphs = graphs};
    cr_assert_eq(backend_open(&s->be, &backend, &s->error), 0, "%s", s->error.text);
    cr_assert_eq(precision_resolve(&precision, NULL, &s->config, &s->be, &s->error), 0);
    cr_assert_eq(
        trainer_open(&s->trainer, &s->config, &precision, &s->be, TRAINER_INITIALIZED, &s->error),
        0, "%s", s->error.text);
    upload_weights(s);
}

static void close_setup(struct setup *s) {
    trainer_close(&s->trainer);
    backend_close(&s->be);
    loader_close(&s->loader);
    tokens_close(&s->tokens);
    fixture_close(&s->file);
    fixture_close(&s->base);
}

static void check_reference(struct setup *s) {
    const float *expected = find(s, "reference", SAFETENSORS_F32);
    if (!config_has_reference(s->trainer.config)) return;
    struct evaluator evaluator = trainer_evaluator(&s->trainer);
    cr_assert_eq(reference_compute(&evaluator, &s->loader, 0, SEQUENCES, true, &s->error), 0);
    double error = distance(s->loader.packing.reference, 1, expected, 2 * (int64_t)ALL_PAIRS) /
                   norm_of(expected, 2 * (int64_t)ALL_PAIRS);
    expect_within(s, "reference", error, s->limits->logps);
}

/* A reference with its adapters has the values of TRL's policy before the first update. */
static void check_reference_with_adapters(struct setup *s) {
    const float *policy = result(s, "logps");
    float *base = s->loader.packing.reference;
    if (!config_has_reference(s->trainer.config) || !policy) return;
    s->loader.packing.reference = NULL;
    struct evaluator evaluator = trainer_evaluator(&s->trainer);
    cr_assert_eq(reference_compute(&evaluator, &s->loader, 0, SEQUENCES, false, &s->error), 0);
    const float *got = s->loader.packing.reference;
    expect_within(s, "reference with adapters",
                  distance(got, 1, policy, 2 * PAIRS) / norm_of(policy, 2 * PAIRS),
                  s->limits->logps);
    if (s->limits == all_limits) /* in 16 bit the adapters change little more than rounding does */
        cr_expect_gt(distance(got, 1, base, 2 * PAIRS),
                     100 * s->limits->logps * norm_of(base, 2 * PAIRS));
    free(s->loader.packing.reference);
    s->loader.packing.reference = base;
}

/* Sums over the pairs of a step, of values [STEPS, PAIRS, 2]. KTO's are of the labelled answers. */
static void expected_sums(const struct setup *s, const char *name, int step, double sums[2],
                          int counts[2]) {
    const int32_t *desirable = find(s, "desirable", SAFETENSORS_I32);
    const float *values = result(s, name);
    memset(sums, 0, 2 * sizeof *sums);
    memset(counts, 0, 2 * sizeof *counts);
    for (int pair = step * PAIRS; pair < (step + 1) * PAIRS; pair++)
        for (int side = 0; side < 2; side++) {
            const bool kto = s->run->rule.objective == PREFERENCE_KTO;
            if (kto && side == desirable[pair]) continue;
            counts[side]++;
            sums[side] += values[2 * pair + (kto ? 0 : side)];
        }
}

/* KTO's divergence, which counts once for each pair of its micro-batch. */
static void check_kl(const struct setup *s, int step, double got) {
    const float *kl = result(s, "kl"), *logps = result(s, "logps");
    double terms = 0;
    if (!kl) return;
    for (int pair = step * PAIRS; pair < (step + 1) * PAIRS; pair++)
        terms += fabs((double)logps[2 * pair + 1]);
    const double expected = 3 * (double)kl[2 * step] + 2 * (double)kl[2 * step + 1];
    expect_within(s, "kl", fabs(got - expected) / terms, s->limits->rewards);
}

/* KTO has no pairs whose accuracy could be counted. */
static void check_accuracy(const struct setup *s, int step, double got) {
    const float *rewards = result(s, "rewards");
    int accurate = 0;
    if (result(s, "kl") || s->limits->precision != CONFIG_PRECISION_FP32) return;
    for (int pair = step * PAIRS; pair < (step + 1) * PAIRS; pair++)
        accurate += rewards[2 * pair] > rewards[2 * pair + 1];
    cr_expect_eq(got, accurate, "%s, step %d: %g, not %d", s->prefix, step, got, accurate);
}

static void check_pairs(const struct setup *s, int step, const struct preference_sums *got) {
    double rewards[2], logps[2];
    int counts[2];
    cr_expect_eq(got->pairs, PAIRS);
    if (!result(s, "rewards")) return;
    expected_sums(s, "logps", step, logps, counts);
    expected_sums(s, "rewards", step, rewards, counts);
    for (int side = 0; side < 2; side++) {
        cr_expect_eq(got->sides[side], counts[side]);
        if (counts[side] == 0) continue;
        const double size = fabs(logps[side]), scaled = (double)s->run->rule.beta * size;
        expect_within(s, "logps", fabs((double)got->p[side] - logps[side]) / size,
                      s->limits->logps);
        expect_within(s, "rewards", fabs((double)got->rewards[side] - rewards[side]) / scaled,
                      s->limits->rewards);
    }
    check_kl(s, step, (double)got->kl);
    check_accuracy(s, step, (double)got->accurate);
}

/* Compares the gradients that the fixture has. */
static void check_gradients(struct setup *s, double loss_scale) {
    struct model *model = &s->trainer.model;
    int checked = 0;
    for (ptrdiff_t i = 0; i < parameter_trained_count(model->list); i++) {
        char name[NAME_MAX_BYTES];
        name_in_fixture(name, s->family, "gradient", &model->list[i]);
        const float *expected = result(s, name);
        if (!expected) continue;
        struct tensor view = model_gradient(model, &model->list[i]);
        const int64_t count = tensor_count(&view);
        float *got = values_of(&s->be, &view);
        expect_within(s, name,
                      distance(got, 1 / loss_scale, expected, count) / norm_of(expected, count),
                      s->limits->gradient);
        free(got);
        checked++;
    }
    cr_expect_eq(checked, 2);
}

static void check_final_weights(struct setup *s) {
    struct model *model = &s->trainer.model;
    double difference = 0, movement = 0;
    for (ptrdiff_t i = 0; i < parameter_trained_count(model->list); i++) {
        char name[NAME_MAX_BYTES];
        const int64_t count = parameter_count(&model->list[i]);
        name_in_fixture(name, s->family, "final", &model->list[i]);
        const float *final = result(s, name);
        name_in_fixture(name, s->family, "initial", &model->list[i]);
        const float *initial = data_in(&s->base, name, SAFETENSORS_F32);
        if (!final) continue;
        float *got = malloc((size_t)count * sizeof *got);
        masters_download(&model->masters, &s->be, got, model->list[i].offset, count);
        difference += pow(distance(got, 1, final, count), 2);
        movement += pow(distance(initial, 1, final, count), 2);
        free(got);
    }
    cr_assert_gt(movement, 0);
    expect_within(s, "final weights", sqrt(difference / movement), s->limits->movement);
}

static void check_run(enum family family, const struct preference_run *run, bool lora,
                      const struct limits *limits) {
    struct setup s;
    char skips[128];
    open_setup(&s, family, run, lora, limits, true);
    check_reference(&s);
    if (lora) check_reference_with_adapters(&s);
    const float *losses = result(&s, "loss"), *norms = result(&s, "gradient_norm");
    snprintf(skips, sizeof skips, "%s.skipped", s.prefix);
    const int32_t *skipped = find(&s, skips, SAFETENSORS_I32);
    for (int step = 0; step < STEPS; step++) {
        struct step_report report;
        cr_assert_eq(trainer_begin_step(&s.trainer, &s.loader, &s.error), 0, "%s", s.error.text);
        cr_assert_eq(trainer_end_step(&s.trainer, &report, &s.error), 0, "%s", s.error.text);
        if (step == 0) check_gradients(&s, report.loss_scale);
        expect_within(&s, "loss", fabs(report.loss / losses[step] - 1), limits->loss);
        cr_expect_eq(report.skipped, skipped[step], "step %d", step);
        check_pairs(&s, step, (const struct preference_sums *)&report.sums);
        if (!skipped[step])
            expect_within(&s, "norm", fabs(report.gradient_norm / norms[step] - 1), limits->norm);
    }
    check_final_weights(&s);
    close_setup(&s);
}

/* Runs that the fixture has, all of them in fp32; on the emulated GPU half of them, and dpo alone
 * in 16 bit. */
static void check_runs(enum family family, bool lora, int limits) {
    for (int i = 0; i < PREFERENCE_RUNS; i++) {
        const char *name = preference_runs[i].name;
        const bool few =
            strcmp(name, "dpo") == 0 ||
            (!test_emulated() && (strcmp(name, "orpo") == 0 || strcmp(name, "kto") == 0));
        if ((limits == 0 || few) && !test_leaves_out((size_t)(i + family + lora)))
            check_run(family, &preference_runs[i], lora, &all_limits[limits]);
    }
}

Test(preference_golden, gpt_fp32) {
    check_runs(GPT2, false, 0);
}

Test(preference_golden, gpt_lora_fp32) {
    check_runs(GPT2, true, 0);
}

Test(preference_golden, llama_fp32) {
    check_runs(LLAMA, false, 0);
}

Test(preference_golden, llama_lora_fp32) {
    check_runs(LLAMA, true, 0);
}

Test(preference_golden, bf16) {
    for (int lora = 0; lora < 2; lora++) {
        check_runs(GPT2, lora, 1);
        check_runs(LLAMA, lora, 1);
    }
}

Test(preference_golden, fp16) {
    for (int lora = 0; lora < 2; lora++) {
        check_runs(GPT2, lora, 2);
        check_runs(LLAMA, lora, 2);
    }
}

/* Returns the weights after some steps in bf16. */
static float *train(const struct preference_run *run, bool graphs, int64_t *count) {
    struct setup s;
    open_setup(&s, GPT2, run, false, &all_limits[1], graphs);
    check_reference(&s);
    for (int step = 0; step < 5; step++) {
        struct step_report report;
        cr_assert_eq(trainer_begin_step(&s.trainer, &s.loader, &s.error), 0, "%s", s.error.text);
        cr_assert_eq(trainer_end_step(&s.trainer, &report, &s.error), 0, "%s", s.error.text);
    }
    float *weights = masters_values(&s.trainer.model);
    *count = s.trainer.model.count;
    close_setup(&s);
    return weights;
}

/* A second run has the same bits, although on GPUs its operations are launched one by one. */
Test(preference_golden, twice_gives_the_same_bits) {
    for (int i = 0; i < PREFERENCE_RUNS; i++) {
        int64_t count, again_count;
        if (test_leaves_out((size_t)i)) continue;
        float *once = train(&preference_runs[i], true, &count);
        float *again = train(&preference_runs[i], false, &again_count);
        cr_assert_eq(count, again_count);
        cr_expect_eq(memcmp(once, again, (size_t)count * sizeof *once), 0, "%s",
                     preference_runs[i].name);
        free(once);
        free(again);
    }
}
