/* Multiple-choice questions answered by a model: the choice with the largest log-likelihood, as in
 * lm-evaluation-harness (data/corpus/question.h). */
#pragma once

#include "data/corpus/question.h"
#include "data/tokenize/tokenizer.h"
#include "model/core/loglikelihood.h"

/* The texts of all choices, in the order of the questions. */
struct choices {
    const struct question_set *set;
    struct scored_text *texts; /* stb_ds array; the group of a text is its question */
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

/* Divides the texts of the file `where` into tokens. Fails, with the line, if no token is
 * left for a choice because the tokenizer joins it with its context. */
int choices_open(struct choices *choices, const struct question_set *set,
                 const struct tokenizer *tokenizer, const char *where, struct error *error);
void choices_close(struct choices *choices);

/* Fails if a text has more than `length` rows: the first such line of the file `where`. */
int choices_check(const struct choices *choices, int64_t length, const char *where,
                  struct error *error);

/* Returns the index of the choice that the model takes, by its log-likelihood or, with `norm`, that
 * per character. The first of equal ones; -1, which is no right answer, if a log-likelihood is NaN
 * or all are -inf, as in a model that has diverged. texts: those of the question. */
int choices_answer(const struct question *question, const struct scored_text *texts, bool norm);

/* Summarizes the scores. */
struct accuracy choices_accuracy(const struct choices *choices);
