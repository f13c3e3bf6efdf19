/* Text generation: draws one token after another from the model's prediction.
 *
 * Keys and values of earlier tokens are cached in the layers' activations, so a new token costs a
 * forward pass of one row. When the context is full, its older half is dropped and the model runs
 * on the remaining tokens, since positions are absolute. */
#pragma once

#include <signal.h>
#include <stdint.h>

#include "data/util/error.h"
#include "model/core/gpt.h"

struct sample_options {
    const int32_t *prompt; /* [prompt_length] tokens, at least one. Only the last ones that fit the
                            * context are used */
    int64_t prompt_length;
    int64_t tokens;     /* number of tokens to add */
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* draw among the k likeliest; 0: all */
    double top_p;       /* then among the likeliest that together have probability p; 1: all */
    int64_t vocabulary; /* draw among tokens 0 .. vocabulary - 1; 0: the model's */
    int ends[2];        /* tokens that end the text early, or -1 */
    uint64_t seed, stream;
    const volatile sig_atomic_t *stop; /* optional: checked between tokens; nonzero stops */
    /* Called with each new token, but not with one of the ends. */
    void (*emit)(void *context, int token);
    void *context;
};

struct sample_result {
    int64_t tokens;                        /* tokens added, including the one that ended the text */
    double prompt_seconds, tokens_seconds; /* for the prompt, and for all tokens after it */
};

/* Returns a sequence length (config->data.seq_len) that is enough for a text of `tokens` tokens,
 * prompt included. The text is the same as with `limit`, in less memory. */
int64_t sample_length(int64_t tokens, int64_t limit);

/* Plans the matmuls of all shapes that sampling uses. Call it between gpt_open and gpt_allocate,
 * while the backend is planning, for models opened for training or sampling. */
void sample_plan(struct gpt *gpt);

/* Draws tokens under the model's autocast; the current batch is lost. A token depends only on
 * (seed, stream, number of tokens before it) and the prediction. Fails if the prediction is not
 * finite. */
int sample_tokens(struct gpt *gpt, struct sample_result *result,
                  const struct sample_options *options, struct error *error);
