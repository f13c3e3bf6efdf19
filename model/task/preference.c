#include "model/task/preference.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "data/corpus/loader.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"

#define AT(member)       (int)(offsetof(struct preference_sums, member) / sizeof(float))
#define CHOSEN(values)   AT(values[PREFERENCE_CHOSEN]), AT(sides[PREFERENCE_CHOSEN])
#define REJECTED(values) AT(values[PREFERENCE_REJECTED]), AT(sides[PREFERENCE_REJECTED])
#define ONLY_LOGGED      0, 0, NULL, NULL, NULL, 0, 0
/* Figures that TRL logs, by the same names with _ for /. */
#define FIGURES                                                                                \
    {"rewards_chosen", CHOSEN(rewards), ONLY_LOGGED},                                          \
        {"rewards_rejected", REJECTED(rewards), ONLY_LOGGED},                                  \
        {"rewards_margins", CHOSEN(rewards), REJECTED(rewards), "margin", "", "margin", 1, 3}, \
        {"logps_chosen", CHOSEN(p), ONLY_LOGGED}, {                                            \
        "logps_rejected", REJECTED(p), ONLY_LOGGED                                             \
    }

static const struct objective_figure pair_figures[] = {
    FIGURES,
    {"rewards_accuracies", AT(accurate), AT(pairs), 0, 0, "right", " %", "right, of 100", 100, 0},
    {0}};
/* No labelled answer is right or wrong, so that column of --eval stays unknown. */
static const struct objective_figure label_figures[] = {
    FIGURES, {"kl", AT(kl), AT(pairs), 0, 0, NULL, NULL, "right, of 100", NAN, 0}, {0}};

/* The memory of a pass: the derivatives by the losses of tokens, the losses that the run of the
 * head for gradients writes once more, and the answers. */
static void bytes(const struct config *config, int64_t rows, size_t *extra, size_t *memory) {
    const size_t pairs = (size_t)(rows / 2);
    (void)config;
    *extra = sizeof(struct preference_batch) + pairs * sizeof(struct preference_pair);
    *memory = 2 * (size_t)rows * sizeof(float) + pairs * sizeof(struct preference_answers);
}

struct preference_answers *preference_answers(void *memory, int64_t rows) {
    return memory ? (struct preference_answers *)((float *)memory + 2 * rows) : NULL;
}

static int read(const struct config *config, const struct batch_view *host,
                const struct loader *loader, struct loader_arrays *arrays, uint64_t first_sample,
                int count, struct error *error) {
    struct preference_batch *to = host->extra;
    (void)config;
    arrays->pairs = to->pairs;
    if (loader_batch(loader, arrays, first_sample, count, error)) return -1;
    to->count = (int32_t)arrays->counted;
    return 0;
}

static struct preference_rule rule_of(const struct config *config) {
    return (struct preference_rule){
        .objective = (enum preference_objective)objective_of(config)->kind,
        .beta = (float)config->objective.beta,
        .label_smoothing = (float)config->objective.label_smoothing,
        .gamma = (float)config->objective.gamma,
        .nll_weight = (float)config->objective.nll_weight,
        .desirable_weight = (float)config->objective.desirable_weight,
        .undesirable_weight = (float)config->objective.undesirable_weight,
    };
}

/* Computes the losses of pairs from those of tokens. Gradients take a second run of the head,
 * because each depends on all tokens of its pair. */
static void loss(const struct pass *pass) {
    _Static_assert(sizeof(struct preference_sums) <= sizeof *pass->sums, "sums of floats");
    struct model *model = pass->model;
    float *losses = model->activations.losses.data, *weights = pass->memory;
    model_head(pass, &(struct head_args){.losses = losses});
    OP(model->be, preference, .losses = losses, .weights = weights, .targets = pass->batch.targets,
       .count = model->shape.rows, .answers = preference_answers(pass->memory, pass->rows),
       .sums = (struct preference_sums *)pass->sums, .batch = pass->batch.extra,
       .rule = rule_of(pass->config));
    if (pass->kind != PASS_TRAIN) return;
    model_head(pass, &(struct head_args){.has_gradients = true,
                                         .weights = weights,
                                         .losses = weights ? weights + pass->rows : NULL,
                                         .has_logits = head_is_one_chunk(pass)});
}

static void describe(char settings[OBJECTIVE_SETTINGS][64], const struct config *config,
                     const struct loader *train) {
    const struct preference_rule rule = rule_of(config);
    const bool kto = rule.objective == PREFERENCE_KTO, simpo = rule.objective == PREFERENCE_SIMPO;
    snprintf(settings[0], sizeof *settings, "beta %g", config->objective.beta);
    if (simpo) snprintf(settings[1], sizeof *settings, "gamma %g", config->objective.gamma);
    if ((simpo || rule.objective == PREFERENCE_DPO) && rule.label_smoothing > 0)
        snprintf(settings[2], sizeof *settings, "label smoothing %g",
                 config->objective.label_smoothing);
    if (kto)
        snprintf(settings[3], sizeof *settings, "weights %g and %g",
                 config->objective.desirable_weight, config->objective.undesirable_weight);
    else if (rule.nll_weight > 0)
        snprintf(settings[3], sizeof *settings, "plus %g x cross entropy",
                 config->objective.nll_weight);
    if (kto && train)
        snprintf(settings[4], sizeof *settings, "z of about %.3g answers",
                 (double)packing_units(&train->packing) / (double)train->sequence_count *
                     (double)config->train.micro_batch_size);
}

/* Ten times what a loss begins with, near 1 or ipo's 1 / (4 beta^2), which weights multiply. */
static double limit(const struct config *config) {
    const double beta = config->objective.beta, likelihood = 1 + config->objective.nll_weight;
    double pairs = 1 + config->objective.gamma + config->objective.desirable_weight +
                   config->objective.undesirable_weight;
    if (config->train.objective == CONFIG_OBJECTIVE_IPO) pairs += 1 / (4 * beta * beta);
    return 10 * pairs + 2 * log((double)config->model.vocab_size) * likelihood;
}

#define SHARED                                                                            \
    .sums = sizeof(struct preference_sums) / sizeof(float), .bytes = bytes, .read = read, \
    .loss = loss, .describe = describe, .limit = limit
const struct objective objective_dpo = {SHARED, .kind = PREFERENCE_DPO, .figures = pair_figures};
const struct objective objective_ipo = {SHARED, .kind = PREFERENCE_IPO, .figures = pair_figures};
const struct objective objective_orpo = {SHARED, .kind = PREFERENCE_ORPO, .figures = pair_figures,
                                         .trains_prompts = true};
const struct objective objective_kto = {SHARED, .kind = PREFERENCE_KTO, .figures = label_figures};
const struct objective objective_simpo = {SHARED, .kind = PREFERENCE_SIMPO,
                                          .figures = pair_figures};
