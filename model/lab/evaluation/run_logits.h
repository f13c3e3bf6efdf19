/* --logits: the largest logits of a teacher for each token of a text. */
#pragma once

#include "data/util/error.h"
#include "data/util/program.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"

/* Writes the files of data/corpus/teacher_logits.h to the folder line->logits, which is created,
 * for the text of config->data.val if --data set it, else of config->data.train, in sequences of
 * config->data.seq_len tokens, by the model at `from`. A file appears once it is complete, so after
 * a signal, a full disk or a kill the same command continues: it keeps complete files, and fails if
 * one was written by another model or for another text. Returns an exit status. */
int run_logits(const struct config *config, const char *from, const struct command_line *line,
               struct error *error);
