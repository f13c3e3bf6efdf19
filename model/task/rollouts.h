/* Rollouts: completions that the model draws for the prompts of a step, with their rewards and
 * advantages, for objective grpo.
 *
 * A step has as many completions as sequences, num_generations of each prompt in turn, and
 * num_iterations steps have the same ones. They depend
 * on the seed, the step's number and the weights alone, so a run that is resumed draws them again.
 * DIRECTORY/rollouts.jsonl has a line for each, in order: {"step", "reward"}, the members of the
 * prompt's row, and "completion". As long as its lines are those of the steps that are repeated,
 * their rewards are taken from it, and the reward's program is not asked again.
 *
 * With G rewards r of a prompt, an advantage is (r - mean(r)) / (s + 1e-4), where s is their sample
 * standard deviation, that of all rewards of the step, or with scale_rewards none nothing divides.
 */
#pragma once

#include <stdio.h>

#include "data/corpus/loader.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/error.h"
#include "kernels/policy_args.h"
#include "model/config/config.h"
#include "model/task/evaluate.h"
#include "model/task/reward.h"
#include "model/task/sample.h"

enum rollouts_array { ROLLOUTS_OLD, ROLLOUTS_REFERENCE, ROLLOUTS_SAMPLED, ROLLOUTS_ARRAYS };

struct completion {
    int32_t *tokens;        /* [data.seq_len + 1], the prompt's first */
    int64_t prompt, length; /* tokens of the prompt, and of both */
    bool ended;             /* by a token or text that ends it, else by its length */
    char *text;             /* stb_ds array: bytes of the completion, without grpo.stop */
    double reward;
    struct policy_sequence given;
};

struct rollouts {
    const struct config *config;
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* NULL: none */
    struct sampler *sampler;
    struct reward reward;
    int64_t count;                   /* completions of a step */
    int64_t first_sample;            /* of the step */
    struct completion *completions;  /* [count] */
    struct reward_request *requests; /* [count] */
    struct sample_text *texts;       /* [count] */
    struct policy_sums sums;
    int32_t *all_tokens;
    float *values[ROLLOUTS_ARRAYS]; /* [count, data.seq_len] -log p of targets; NULL: none */
    char *row;                      /* stb_ds array: the row of the last prompt */
    int32_t *prompt;                /* stb_ds array: its tokens */
    FILE *file;                     /* rollouts.jsonl */
    int descriptor;
    long bytes;    /* of its lines that are known to be right */
    bool recorded; /* what follows was written before the run was resumed */
    int64_t step;  /* the one that is drawn, counted from 1 */
    double total;  /* rewards of a validation */
    int64_t asked; /* the first of its completions whose reward is not recorded */
};

/* Options of the sampler; `ends` are those of the model. */
struct sample_options rollouts_options(const struct config *config,
                                       const struct sample_options *ends,
                                       const struct tokenizer *tokenizer);

/* Allocates the completions of a step, for rollouts_weigh alone. */
int rollouts_allocate(struct rollouts *rollouts, const struct config *config, struct error *error);

/* Does so, checks all prompts, starts the reward and opens the file in `directory` behind the lines
 * of `step` steps; NULL: no file, for rollouts_evaluate alone. loaders: of training and validation,
 * whose `rollouts` are set; NULL: none. */
int rollouts_open(struct rollouts *rollouts, const struct config *config, struct sampler *sampler,
                  const struct tokenizer *tokenizer, struct loader *const loaders[2],
                  const char *directory, int64_t step, struct error *error);
void rollouts_close(struct rollouts *rollouts);

/* Draws and rates the completions of the step that begins with this sample, unless the step before
 * has drawn them (num_iterations). The evaluator computes log-probabilities of the reference and,
 * if further steps train on them, of the model. */
int rollouts_make(struct rollouts *rollouts, struct evaluator *evaluator,
                  const struct loader *loader, int64_t step, int64_t first_sample,
                  struct error *error);

/* Its second half, of completions with rewards: sets advantages, figures and the reference. */
int rollouts_weigh(struct rollouts *rollouts, struct evaluator *evaluator,
                   const struct loader *loader, struct error *error);

/* Draws completions of the first prompts of a loader, as many of each as in training, and sets the
 * sums that have figures of them. Returns RESULT_STOPPED if sampler->options.stop is set. */
int rollouts_evaluate(struct rollouts *rollouts, const struct loader *loader, int64_t prompts,
                      struct policy_sums *sums, struct error *error);

/* Copies completions to a batch: tokens and targets, and what the loss reads. */
void rollouts_read(const struct rollouts *rollouts, struct loader_arrays *arrays,
                   struct policy_batch *batch, uint64_t first_sample, int count);
void rollouts_values(const struct rollouts *rollouts, enum rollouts_array which, float *values,
                     int64_t first_sample, int64_t count);
