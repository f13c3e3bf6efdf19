/* The built-in questions: which words follow a piece of a story (data/corpus/tales.h)?
 *
 * The choices are the words after four pieces, of which one is shown. Any of them may be the right
 * one, so a model that ignores the piece shown is right in 25 %. The stories are in neither the
 * training data nor the validation data of the corpus. */
#pragma once

#include "data/util/error.h"
#include "model/choices/questions.h"

enum {
    TALES_QUESTIONS = 200,
    TALES_QUESTION_CHOICES = 4,
    TALES_QUESTION_BYTES = 120 /* largest size of context and choice */
};

/* Adds the questions, which are always the same. Each index is the answer equally often. */
int tales_questions(struct question_set *set, struct error *error);
