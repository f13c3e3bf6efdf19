/* Multiple-choice questions that a run answers during training (eval.choices). */
#pragma once

#include <stdbool.h>

#include "data/util/error.h"
#include "model/choices/choices.h"
#include "model/optimize/trainer.h"

struct training_choices {
    bool open; /* false without eval.choices */
    struct choices choices;
    struct scorer scorer;
};

/* Opens the questions of the trainer's config, on every rank, before the first step. from: as for
 * setup_tokenizer. Fails if a text is longer than data.seq_len. */
int training_choices_open(struct training_choices *questions, struct trainer *trainer,
                          const char *from, struct error *error);
void training_choices_close(struct training_choices *questions);

/* Answers them. All ranks get the result. Returns RESULT_STOPPED once *trainer->stop is nonzero. */
int training_choices_answer(struct training_choices *questions, struct trainer *trainer,
                            struct accuracy *accuracy, struct error *error);
