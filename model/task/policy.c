#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "data/corpus/loader.h"
#include "model/config/config_keys.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"
#include "model/task/rollouts.h"

#define AT(member) (int)(offsetof(struct policy_sums, member) / sizeof(float))
#define MEAN(name, sum, count) \
    { name, AT(sum), AT(count), 0, 0, NULL, NULL, NULL, 0, 0 }
#define SHOWN(name, sum, count, label, unit, f, d) \
    { name, AT(sum), AT(count), 0, 0, label, unit, label, f, d }

/* Figures by the names of TRL, with _ for /. One micro-batch has the step's reward_std,
 * frac_reward_zero_std and largest ratio. */
static const struct objective_figure figures[] = {
    SHOWN("reward", reward, sequences, "reward", "", 1, 3),
    MEAN("reward_std", deviation, micro_batches),
    MEAN("frac_reward_zero_std", constant, micro_batches),
    SHOWN("completions_mean_length", length, sequences, "length", "", 1, 1),
    MEAN("completions_clipped_ratio", truncated, sequences),
    MEAN("entropy", nll, tokens),
    MEAN("kl", kl, tokens),
    MEAN("clip_ratio_low_mean", low, units),
    MEAN("clip_ratio_high_mean", high, units),
    MEAN("sampling_logp_difference_mean", difference, tokens),
    MEAN("sampling_kl", mismatch, tokens),
    MEAN("sampling_ratio_max", largest, micro_batches),
    {0}};

/* Behind the sequences of a batch: old, reference and sampled -log p of its rows. */
static float *arrays_of(const struct policy_batch *batch, int64_t sequences) {
    return batch ? (float *)(batch->sequences + sequences) : NULL;
}

static void bytes(const struct config *config, int64_t rows, size_t *extra, size_t *memory) {
    const size_t sequences = (size_t)(rows / config->data.seq_len), values = (size_t)rows;
    *extra = sizeof(struct policy_batch) + sequences * sizeof(struct policy_sequence) +
             3 * values * sizeof(float);
    *memory = 2 * values * sizeof(float) + sequences * sizeof(struct policy_sums);
}

static int read_samples(const struct config *config, const struct batch_view *host,
                        const struct loader *loader, struct loader_arrays *arrays,
                        uint64_t first_sample, int count, struct error *error) {
    struct policy_batch *batch = host->extra;
    float *values = arrays_of(batch, host->batch);
    const int64_t rows = host->batch * host->length;
    if (!loader->rollouts)
        return fail(error,
                    "train.objective is %s: its completions are drawn while it trains, and "
                    "nothing else evaluates its loss",
                    config_name_of("train.objective", config->train.objective));
    rollouts_read(loader->rollouts, arrays, batch, first_sample, count);
    const int64_t first = (int64_t)first_sample;
    rollouts_values(loader->rollouts, ROLLOUTS_OLD, values, first, count);
    rollouts_values(loader->rollouts, ROLLOUTS_REFERENCE, values + rows, first, count);
    rollouts_values(loader->rollouts, ROLLOUTS_SAMPLED, values + 2 * rows, first, count);
    return 0;
}

static struct policy_rule rule_of(const struct config *config) {
    const double high = config->grpo.epsilon_high;
    return (struct policy_rule){
        .cispo = config->grpo.loss_type == CONFIG_GRPO_CISPO,
        .sequence_level = config->grpo.importance_sampling_level == CONFIG_IMPORTANCE_SEQUENCE,
        .corrects_kl = config->grpo.use_bias_correction_kl,
        .low = (float)config->grpo.epsilon,
        .high = (float)(high > 0 ? high : config->grpo.epsilon),
        .delta = config->grpo.delta > 0 ? (float)config->grpo.delta : INFINITY,
        .beta = (float)config->grpo.beta,
    };
}

/* Gradients take a second run of the head, whose weights depend on what the first one gives. */
static void loss(const struct pass *pass) {
    _Static_assert(sizeof(struct policy_sums) == sizeof *pass->sums, "sums of floats");
    struct model *model = pass->model;
    const int64_t sequences = pass->batch.batch;
    const float *values = arrays_of(pass->batch.extra, sequences);
    float *losses = model->activations.losses.data, *weights = pass->memory;
    const int64_t rows = pass->rows;
    model_head(pass, &(struct head_args){.losses = losses});
    OP(model->be, policy, .losses = losses, .weights = weights, .targets = pass->batch.targets,
       .old = values, .reference = values ? values + rows : NULL,
       .sampled = values ? values + 2 * rows : NULL, .batch = sequences,
       .length = pass->batch.length, .given = pass->batch.extra,
       .parts = weights ? (struct policy_sums *)(weights + 2 * rows) : NULL,
       .sums = (struct policy_sums *)pass->sums, .rule = rule_of(pass->config));
    if (pass->kind != PASS_TRAIN) return;
    model_head(pass, &(struct head_args){.has_gradients = true,
                                         .weights = weights,
                                         .losses = weights ? weights + rows : NULL,
                                         .has_logits = head_is_one_chunk(pass)});
}

static void describe(char settings[OBJECTIVE_SETTINGS][64], const struct config *config,
                     const struct loader *train) {
    const struct policy_rule rule = rule_of(config);
    (void)train;
    snprintf(settings[0], sizeof *settings, "%s",
             config_name_of("grpo.loss_type", config->grpo.loss_type));
    snprintf(settings[1], sizeof *settings, "%" PRId64 " completions of a prompt",
             config->grpo.num_generations);
    snprintf(settings[2], sizeof *settings, "at most %" PRId64 " tokens",
             config->grpo.max_completion_length);
    if (rule.beta > 0) snprintf(settings[3], sizeof *settings, "beta %g", config->grpo.beta);
    if (rule.sequence_level) snprintf(settings[4], sizeof *settings, "ratios of sequences");
}

/* Losses are advantages times ratios near 1, with either sign. A mean of hundreds is a divergence
 * from the reference that exploded. */
static double limit(const struct config *config) {
    return 100 * (1 + config->grpo.beta);
}

const struct objective objective_grpo = {
    .sums = sizeof(struct policy_sums) / sizeof(float),
    .bytes = bytes,
    .read = read_samples,
    .loss = loss,
    .describe = describe,
    .figures = figures,
    .limit = limit,
};
