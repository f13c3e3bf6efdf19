/* Multiple-choice questions answered by a model, as in lm-evaluation-harness.
 *
 * A model answers with the choice that it finds most likely. The score of a choice is the
 * log-likelihood of its continuation after its context. acc takes the choice with the highest
 * score, acc_norm the one with the highest score / characters.
 *
 * Texts are divided into tokens as in the harness (lm_eval/api/model.py, _encode_pair): encode
 * context + continuation as one text, and the context alone; both begin as the tokenizer's
 * post-processor says. A text has the context's own n tokens, then those of the whole text after
 * the first n, which are the continuation's. For an empty context, encode the continuation alone,
 * without a token before or after it, and condition it on the tokens that begin a text (or on the
 * one that ends one, if the tokenizer has no other). */
#pragma once

#include "data/tokenize/tokenizer.h"
#include "model/choices/questions.h"
#include "model/task/loglikelihood.h"

struct choices {
    const char *path; /* file of the questions, for messages */
    struct question_set set;
    struct scored_text *texts; /* stb_ds array: all choices, in order; a group is a question */
    int64_t rows;              /* rows of all texts without sharing */
    int64_t longest;           /* largest number of rows of a text */
};

/* Shares of right answers, and the ends of their 95 % intervals (Wilson 1927). */
struct accuracy {
    int64_t questions;
    double acc, acc_low, acc_high;    /* by the log-likelihood */
    double norm, norm_low, norm_high; /* by the log-likelihood per character: acc_norm */
    double chance;                    /* expected share of random answers */
};

/* Reads the questions (questions_open), or makes those of tales_questions.h if path is "tales", and
 * divides their texts into tokens. `path` is used until choices_close. Fails, with the line, if no
 * token is left for a choice because the tokenizer joins it with its context. */
int choices_open(struct choices *choices, const char *path, const struct tokenizer *tokenizer,
                 struct error *error);
void choices_close(struct choices *choices);

/* Fails if a text has more than `length` rows, with the line of the first. */
int choices_check(const struct choices *choices, int64_t length, struct error *error);

/* Returns the index of the choice that the model takes, by its log-likelihood or, with `norm`, that
 * per character. The first of equal ones; -1, which is no right answer, if a log-likelihood is NaN
 * or all are -inf, as in a model that has diverged. texts: those of the question. */
int choices_answer(const struct question *question, const struct scored_text *texts, bool norm);

/* Summarizes the scores. */
struct accuracy choices_accuracy(const struct choices *choices);
