/* Text generation: draws one token after another from the model's prediction, for one text or
 * several at once.
 *
 * Keys and values of earlier tokens are cached, so a new token costs a forward pass of one row for
 * each text. When the context is full, its older half is dropped and the model runs on the
 * remaining tokens, since positions are absolute. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "model/pass/pass.h"

enum { SAMPLE_ENDS_MAX = 32 };

struct sample_options {
    const int32_t *prompt; /* [prompt_length] tokens, at least one, which all texts begin with. Only
                            * the last ones that fit the context are used */
    int64_t prompt_length;
    int64_t tokens; /* number of tokens to add to each text */

    /* Rules by which tokens are drawn, in the order in which they apply: as in Hugging Face's
     * generate. */
    double repetition_penalty; /* divides positive logits of tokens that the text has, multiplies
                                * negative ones; 0 or 1: none. Keskar et al. 2019 */
    double temperature;        /* 0: always the likeliest */
    int64_t top_k;             /* draw among the k likeliest and equals of the last; 0: all */
    double top_p; /* then among the likeliest that together have probability p; 1: all */
    double min_p; /* then among those with at least min_p of the likeliest's probability; 0: all.
                   * Nguyen et al. 2024 */

    int64_t vocabulary;            /* draw among tokens 0 .. vocabulary - 1; 0: the model's */
    int32_t ends[SAMPLE_ENDS_MAX]; /* [end_count] tokens that end a text early */
    bool shown[SAMPLE_ENDS_MAX];   /* true for those that are part of the text */
    int end_count;
    uint64_t seed, stream;             /* text i uses stream + i */
    const volatile sig_atomic_t *stop; /* optional: checked between tokens; nonzero stops */
    /* Called with each new token of a text, but not with an end that is not shown. False ends the
     * text. */
    bool (*emit)(void *context, int64_t text, int token);
    void *context;

    /* Runs the whole contexts through the training forward pass for every token, at a high cost,
     * for the same logits as model_forward and objective_loss on the same batch. The model is one
     * for evaluation, and generates as many texts as its batch has sequences. */
    bool exact;
};

struct sample_result {
    int64_t tokens; /* tokens added to all texts, including those that ended one */
    double prompt_seconds, tokens_seconds; /* for the prompt, and for all tokens after it */
};

/* Texts that are generated at once, and the prediction of their next tokens. */
struct sampler {
    struct model *model;
    struct sample_options options;
    int64_t texts, window, vocabulary; /* window: longest context, in tokens */
    struct batch contexts; /* [texts, window] tokens that were read, `length` of each text */
    struct batch added;    /* rows of PASS_EXTEND; without memory if options.exact */
    int64_t length;
    uint64_t position;      /* tokens of each text so far, dropped ones included */
    int64_t prefix;         /* first tokens of each text, in the cache as one run of rows */
    bool shared;            /* all texts have the same run */
    bool *seen;             /* [texts, vocabulary] tokens that each text has; NULL: not needed */
    float *logits;          /* [texts + 1, padded vocabulary] prediction, and that of a prompt */
    float drawn;            /* -log p of the token drawn last, by the rules of options */
    float *weights, *order; /* [padded vocabulary] scratch */
    int32_t *kept;          /* [padded vocabulary] tokens of the weights, in ascending order */
};

/* Returns a sequence length (config->data.seq_len) that is enough for a text of `tokens` tokens,
 * prompt included. The text is the same as with `limit`, in less memory. */
int64_t sample_length(int64_t tokens, int64_t limit);

/* Plans the matmuls of all shapes that sampling uses. Call it between model_open and
 * model_allocate, while the backend is planning, for models opened for training or sampling. */
void sample_plan(struct model *model);

/* The same for exact sampling with a model for evaluation. */
void sample_plan_exact(struct model *model);

/* Bytes of backend memory that sampler_open takes, unless options->exact; on a CPU, host memory
 * included. */
size_t sampler_bytes(const struct model *model);

/* Allocates memory for as many texts as the model was opened for, and begins them without tokens.
 * The caller may change options later, but for vocabulary, exact and whether there is a penalty. */
int sampler_open(struct sampler *sampler, struct model *model, const struct sample_options *options,
                 struct error *error);
void sampler_close(struct sampler *sampler);

/* Forgets all tokens. */
void sampler_begin(struct sampler *sampler);

/* Appends the same tokens to each text, and predicts the next ones. Of many tokens only the last
 * ones that fit in the context are read. */
void sampler_read(struct sampler *sampler, const int32_t *tokens, int64_t count);

/* Appends one token to each text, tokens [texts], and predicts the next ones. */
void sampler_append(struct sampler *sampler, const int32_t *tokens);

/* Draws the next token of each text from the prediction, under the model's autocast. A token
 * depends only on (seed, stream of the text, number of tokens before it) and the prediction. Fails
 * if the prediction is not finite. */
int sampler_draw(struct sampler *sampler, int32_t *tokens, struct error *error);

/* Reads the prompt of sampler->options and draws tokens until all texts have ended. */
int sampler_generate(struct sampler *sampler, struct sample_result *result, struct error *error);

/* A text to draw. The prompt leaves room for options.tokens more in the context. */
struct sample_text {
    const int32_t *prompt; /* [prompt_length], at least one token */
    int64_t prompt_length;
    uint64_t stream;
};

/* Draws `count` texts, at most sampler->texts at once: where one ends, the next one begins. The
 * model has a cache, and options no penalty. Prompts of adjacent texts that are equal are read
 * once, in a model with states once for those that begin together. The tokens of a text are a
 * function of (seed, stream, prompt) and sampler->texts, whatever the other texts are, unless
 * tensors are quantized with a scale for all rows. options.emit gets the text's index.
 * Returns RESULT_STOPPED if options.stop is set. */
int sampler_generate_texts(struct sampler *sampler, const struct sample_text *texts, int64_t count,
                           struct sample_result *result, struct error *error);
