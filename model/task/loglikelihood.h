/* Log-likelihoods of the ends of texts, by the training forward pass, in batches of the model's
 * capacity. Texts of a group share the rows of their common beginning (struct pass_decode): with
 * four endings of a text, the text is run once. */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "data/util/error.h"
#include "model/pass/pass.h"

struct scored_text {
    const int32_t *tokens; /* [count] */
    int64_t count;         /* at most the model's sequence length + 1 */
    int64_t first;         /* 1 or more: tokens from this one on are scored */
    int64_t group;         /* texts of a group are adjacent */
    int64_t shared;        /* result: tokens of the common beginning that the group runs once */
    double log_likelihood; /* result: sum of log P(token | tokens before it), in nats */
};

struct scorer {
    struct model *model;
    struct batch batch;
    float *losses;                     /* [B T], host memory of the backend */
    const volatile sig_atomic_t *stop; /* optional: nonzero ends the scoring early */
    int64_t rows_run;                  /* rows of all batches so far that belong to a text */
};

/* Bytes of backend memory that scorer_open takes; on a CPU, host memory included. */
size_t scorer_bytes(const struct model *model);

/* Plans the forward pass of a batch. Call it between model_open and model_allocate, while the
 * backend is planning, for models opened for training or evaluation. */
void scorer_plan(struct model *model);

int scorer_open(struct scorer *scorer, struct model *model, struct error *error);
void scorer_close(struct scorer *scorer);

/* Scores all texts. Batches are divided among ranks, and all ranks get the results. The weights do
 * not change; the current batch is lost. Returns RESULT_STOPPED, without results, once
 * *scorer->stop is nonzero on any rank. */
int scorer_run(struct scorer *scorer, struct scored_text *texts, int64_t count,
               struct error *error);
