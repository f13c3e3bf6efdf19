/* Tokens from a model: one after another, drawn from its prediction.
 *
 * Keys and values of what was read stay in the layers' activations, so a new token costs one row
 * through the model. When the context is full, its older half is dropped and the rest is read once
 * more, since positions are absolute. */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "data/util/error.h"
#include "model/core/gpt.h"

struct sample_options {
    const int32_t *prompt; /* [prompt_length] tokens; at least one. Only the last ones that fit
                            * the context are read */
    int64_t prompt_length;
    int64_t tokens;     /* to add */
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* draw among the k likeliest; 0: all */
    double top_p;       /* then among the likeliest that together have probability p; 1: all */
    int64_t vocabulary; /* draw among tokens 0 .. vocabulary - 1; 0: the model's */
    int ends[2];        /* tokens that end the text early, or -1 */
    uint64_t seed, stream;
    const volatile sig_atomic_t *stop; /* optional: looked at between tokens */
    /* Called with each new token, but not with one of the ends. */
    void (*emit)(void *context, int token);
    void *context;
};

struct sample_result {
    int64_t tokens;                        /* added, with the one that ended the text */
    double prompt_seconds, tokens_seconds; /* reading the prompt, and all after it */
};

/* How long the sequences of a model must be (config->data.seq_len) to make a text of so many
 * tokens, prompt included, as one of `limit` tokens would: the same text, in less memory. */
int64_t sample_length(int64_t tokens, int64_t limit);

/* Prepares products for the shapes sampling uses; between gpt_open and gpt_allocate, while the
 * backend is planning. For models opened for training or sampling. */
void sample_plan(struct gpt *gpt);

/* Draws tokens under the model's autocast; the batch in place is lost. The token at a place
 * depends on (seed, stream, number of tokens before it) and the prediction alone. Fails when the
 * prediction is not finite. */
int sample_tokens(struct gpt *gpt, struct sample_result *result,
                  const struct sample_options *options, struct error *error);
