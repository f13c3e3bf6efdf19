/* Learning from rewards compared with TRL: ten steps of each kind of loss on stored completions,
 * rewards and old log-probabilities, with and without adapters, whose absence is the reference. A
 * step has two completions of two prompts, two in each micro-batch. See test/golden/policy.py. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/prompts.h"
#include "kernels/open/backend_open.h"
#include "model/task/rollouts.h"
#include "test/device.h"
#include "test/model/core/golden_model.h"
#include "test/model/masters.h"

enum { COMPLETIONS = MICRO_BATCHES * BATCH, ALL_COMPLETIONS = STEPS * COMPLETIONS };

/* Both sum in their own order. Losses are sums of terms near 1 of both signs. */
static const double LOSS_LIMIT = 5e-6, NORM_LIMIT = 5e-6, GRADIENT_LIMIT = 5e-6, SUM_LIMIT = 2e-6;

static const struct policy_run {
    const char *name;
    enum config_grpo_loss loss_type;
    bool sequence;
    double low, high, delta, beta;
    bool corrects;
    enum config_scale_rewards scale;
    bool masks, on_policy;
} runs[] = {
    {"dapo", CONFIG_GRPO_DAPO, false, 0.2, 0, 0, 0, true, CONFIG_REWARDS_GROUP, false, false},
    {"on_policy", CONFIG_GRPO_DAPO, false, 0.2, 0, 0, 0, true, CONFIG_REWARDS_GROUP, false, true},
    {"grpo", CONFIG_GRPO_GRPO, false, 0.2, 0.28, 0, 0, true, CONFIG_REWARDS_NONE, false, false},
    {"bnpo", CONFIG_GRPO_BNPO, false, 0.2, 0.2, 1.3, 0, true, CONFIG_REWARDS_GROUP, true, false},
    {"dr_grpo", CONFIG_GRPO_DR_GRPO, false, 0.2, 0, 0, 0, true, CONFIG_REWARDS_BATCH, false, false},
    {"cispo", CONFIG_GRPO_CISPO, false, 0.2, 1.1, 0, 0, true, CONFIG_REWARDS_GROUP, false, false},
    {"gspo", CONFIG_GRPO_GRPO, true, 0.02, 0.02, 0, 0, true, CONFIG_REWARDS_GROUP, false, false},
    {"cispo_sequence", CONFIG_GRPO_CISPO, true, 0.2, 1.05, 0, 0, true, CONFIG_REWARDS_GROUP, true,
     false},
    {"kl", CONFIG_GRPO_DAPO, false, 0.2, 0, 0, 0.3, true, CONFIG_REWARDS_GROUP, false, false},
    {"kl_plain", CONFIG_GRPO_GRPO, false, 0.2, 0, 0, 0.3, false, CONFIG_REWARDS_GROUP, false,
     false},
    {"kl_sequence", CONFIG_GRPO_BNPO, true, 0.2, 0, 0, 0.3, true, CONFIG_REWARDS_GROUP, false,
     false},
    {"kl_on_policy", CONFIG_GRPO_DAPO, false, 0.2, 0, 0, 0.3, true, CONFIG_REWARDS_GROUP, false,
     true},
};
enum { RUNS = sizeof runs / sizeof *runs };

struct setup {
    const struct policy_run *run;
    enum family family;
    struct fixture file, base;
    char prefix[64];
    struct config config;
    struct backend be;
    struct tokens tokens;
    struct loader loader;
    struct rollouts rollouts;
    struct trainer trainer;
    struct error error;
};

#include "test/model/task/golden_steps.h"

static void make_config(struct setup *s, bool lora) {
    struct config *config = &s->config;
    const struct policy_run *run = s->run;
    config_defaults(config);
    config->precision = CONFIG_PRECISION_FP32;
    make_model(config, s->family);
    make_lora_sizes(config);
    if (lora) make_lora(config, s->family == GPT2 ? "c_attn c_fc c_proj" : "all-linear");
    make_training(config);
    config->rank_count = 1;
    config->data.seq_len = LORA_LENGTH;
    config->masked_share = 1.0 / 16; /* so that the head reads the rows that count alone */
    config->train.objective = CONFIG_OBJECTIVE_GRPO;
    config->grpo.loss_type = run->loss_type;
    config->grpo.importance_sampling_level =
        run->sequence ? CONFIG_IMPORTANCE_SEQUENCE : CONFIG_IMPORTANCE_TOKEN;
    config->grpo.num_generations = 2;
    config->grpo.max_completion_length = 30;
    config->grpo.num_iterations = run->on_policy ? 1 : 2; /* for memory of old log-probabilities */
    config->grpo.epsilon = run->low;
    config->grpo.epsilon_high = run->high;
    config->grpo.delta = run->delta;
    config->grpo.beta = run->beta;
    config->grpo.use_bias_correction_kl = run->corrects;
    config->grpo.scale_rewards = run->scale;
    config->grpo.mask_truncated_completions = run->masks;
}

/* A loader whose rows have the completions that load_step stores. */
static void open_loader(struct setup *s) {
    const struct loader_options options = {
        .seq_len = LORA_LENGTH, .vocab_size = VOCABULARY, .kind = &prompts_loader};
    cr_assert_eq(prompts_from_memory(&s->tokens, strdup("{}\n{}\n"), 6, "rows", &s->error), 0);
    cr_assert_eq(loader_open(&s->loader, &s->tokens, &options, &s->error), 0, "%s", s->error.text);
    s->loader.rollouts = &s->rollouts;
}

static void open_setup(struct setup *s, enum family family, const struct policy_run *run, bool lora,
                       bool graphs) {
    const char *name = family == GPT2 ? "gpt" : "llama";
    char path[128];
    struct precision precision;
    *s = (struct setup){.run = run, .family = family};
    snprintf(s->prefix, sizeof s->prefix, "%s%s", lora ? "lora_" : "", run->name);
    snprintf(path, sizeof path, "test/golden/%s_policy.safetensors", name);
    fixture_open(&s->file, path);
    snprintf(path, sizeof path, "test/golden/%s_lora_fp32.safetensors", name);
    fixture_open(&s->base, path);
    make_config(s, lora);
    const struct backend_options backend = {
        .device = test_device(), .threads = 2, .graphs = graphs};
    cr_assert_eq(backend_open(&s->be, &backend, &s->error), 0, "%s", s->error.text);
    cr_assert_eq(precision_resolve(&precision, NULL, &s->config, &s->be, &s->error), 0);
    cr_assert_eq(
        trainer_open(&s->trainer, &s->config, &precision, &s->be, TRAINER_INITIALIZED, &s->error),
        0, "%s", s->error.text);
    cr_assert_eq(rollouts_allocate(&s->rollouts, &s->config, &s->error), 0);
    open_loader(s);
    upload_weights(s);
}

static void close_setup(struct setup *s) {
    rollouts_close(&s->rollouts);
    trainer_close(&s->trainer);
    backend_close(&s->be);
    loader_close(&s->loader);
    tokens_close(&s->tokens);
    fixture_close(&s->file);
    fixture_close(&s->base);
}

/* Stores the completions of a step. Those of the sampler are 0.01 more likely than the old ones. */
static void load_step(struct setup *s, int step) {
    const int32_t *tokens = find(s, "tokens", SAFETENSORS_I32);
    const int32_t *lengths = find(s, "lengths", SAFETENSORS_I32);
    const int32_t *prompts = find(s, "prompts", SAFETENSORS_I32);
    const int32_t *ended = find(s, "ended", SAFETENSORS_I32);
    const float *rewards = find(s, "rewards", SAFETENSORS_F32);
    const float *old = find(s, "old", SAFETENSORS_F32);
    for (int i = 0; i < step * COMPLETIONS; i++) {
        tokens += lengths[i];
        old += lengths[i] - prompts[i];
    }
    for (int i = 0; i < COMPLETIONS; i++) {
        struct completion *completion = &s->rollouts.completions[i];
        const int at = step * COMPLETIONS + i;
        memcpy(completion->tokens, tokens, (size_t)lengths[at] * sizeof *tokens);
        completion->length = lengths[at];
        completion->prompt = prompts[at];
        completion->ended = ended[at];
        completion->reward = rewards[at];
        for (int t = prompts[at]; t < lengths[at]; t++, old++) {
            const int row = i * LORA_LENGTH + t - 1;
            if (!s->run->on_policy) s->rollouts.values[ROLLOUTS_OLD][row] = -*old;
            s->rollouts.values[ROLLOUTS_SAMPLED][row] = -*old - 0.01f;
        }
        tokens += lengths[at];
    }
    s->rollouts.first_sample = s->trainer.state.next_sample;
    struct evaluator evaluator = trainer_evaluator(&s->trainer);
    cr_assert_eq(rollouts_weigh(&s->rollouts, &evaluator, &s->loader, &s->error), 0, "%s",
                 s->error.text);
}

static void check_gradients(struct setup *s) {
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
        expect_within(s, name, distance(got, 1, expected, count) / norm_of(expected, count),
                      GRADIENT_LIMIT);
        free(got);
        checked++;
    }
    cr_expect_eq(checked, 2);
}

/* Compares sums over a step with those of TRL. */
static void check_sums(const struct setup *s, int step, const struct policy_sums *got) {
    const double nll = (double)result(s, "nll")[step], kl = (double)result(s, "kl")[step];
    expect_within(s, "entropy", fabs((double)got->nll / nll - 1), SUM_LIMIT);
    expect_within(s, "kl", fabs((double)got->kl - kl), SUM_LIMIT * (nll + kl));
    /* TRL's counts are means times their number. */
    expect_within(s, "low", fabs((double)(got->low - result(s, "low")[step])), 1e-5);
    expect_within(s, "high", fabs((double)(got->high - result(s, "high")[step])), 1e-5);
    cr_expect_eq(got->sequences, COMPLETIONS);
    cr_expect_eq(got->micro_batches, 1);
    if (s->run->on_policy) return;
    expect_within(s, "difference", fabs((double)(got->difference / got->tokens) - 0.01), 1e-6);
    expect_within(s, "mismatch", fabs((double)(got->mismatch / got->tokens) - 4.98337e-5), 1e-7);
    expect_within(s, "largest", fabs((double)got->largest - 0.990049834), 1e-6);
}

static void check_run(enum family family, const struct policy_run *run, bool lora) {
    struct setup s;
    open_setup(&s, family, run, lora, true);
    const float *losses = result(&s, "loss"), *norms = result(&s, "gradient_norm");
    for (int step = 0; step < STEPS; step++) {
        struct step_report report;
        load_step(&s, step);
        cr_assert_eq(trainer_begin_step(&s.trainer, &s.loader, &s.error), 0, "%s", s.error.text);
        cr_assert_eq(trainer_end_step(&s.trainer, &report, &s.error), 0, "%s", s.error.text);
        if (step == 0) check_gradients(&s);
        expect_within(&s, "loss", fabs((double)report.loss - (double)losses[step]),
                      LOSS_LIMIT * fmax(1, fabs((double)losses[step])));
        /* All ratios of a step may be clipped. */
        expect_within(&s, "norm", fabs((double)(report.gradient_norm - norms[step])),
                      NORM_LIMIT * (double)norms[step]);
        check_sums(&s, step, (const struct policy_sums *)&report.sums);
    }
    close_setup(&s);
}

/* On the emulated GPU half of the runs. Those with the divergence need adapters. */
static void check_runs(enum family family, bool lora) {
    for (int i = 0; i < RUNS; i++)
        if ((lora || runs[i].beta == 0) && !test_leaves_out((size_t)(i + family + lora)))
            check_run(family, &runs[i], lora);
}

Test(policy_golden, gpt) {
    check_runs(GPT2, false);
}

Test(policy_golden, gpt_lora) {
    check_runs(GPT2, true);
}

Test(policy_golden, llama) {
    check_runs(LLAMA, false);
}

Test(policy_golden, llama_lora) {
    check_runs(LLAMA, true);
}

/* Returns the weights after three steps. */
static float *train(bool graphs, int64_t *count) {
    struct setup s;
    open_setup(&s, LLAMA, &runs[8], true, graphs);
    for (int step = 0; step < 3; step++) {
        struct step_report report;
        load_step(&s, step);
        cr_assert_eq(trainer_begin_step(&s.trainer, &s.loader, &s.error), 0, "%s", s.error.text);
        cr_assert_eq(trainer_end_step(&s.trainer, &report, &s.error), 0, "%s", s.error.text);
    }
    float *weights = masters_values(&s.trainer.model);
    *count = s.trainer.model.count;
    close_setup(&s);
    return weights;
}

/* A second run has the same bits, although on GPUs its operations are launched one by one. */
Test(policy_golden, twice_gives_the_same_bits) {
    int64_t count, again_count;
    float *once = train(true, &count), *again = train(false, &again_count);
    cr_assert_eq(count, again_count);
    cr_expect_eq(memcmp(once, again, (size_t)count * sizeof *once), 0);
    free(once);
    free(again);
}
