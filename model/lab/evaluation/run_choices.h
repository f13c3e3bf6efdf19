/* The command ./train --choices: multiple-choice questions, answered in one or more precisions. */
#pragma once

#include "data/util/error.h"
#include "model/config/config.h"

struct choices_options {
    const char *questions;                   /* a file of JSON Lines, or "tales" */
    const enum config_precision *precisions; /* [precision_count] */
    int precision_count;                     /* 0: the config's precision */
    const char *out;                         /* directory for reports; NULL: none are written */
};

/* Answers the questions with the model at `from`, a checkpoint or a Hugging Face directory. Prints
 * a table; writes choices.json, with the log-likelihoods of all choices, into options->out, which
 * it creates. Returns an exit status. */
int run_choices(const struct config *config, const char *from,
                const struct choices_options *options, struct error *error);
