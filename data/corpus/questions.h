/* Opens a set of multiple-choice questions: a file of JSON Lines, or the built-in set.
 *
 * Each line of a file is a row of a form that data/corpus/question_rows.h knows; forms may be
 * mixed. Blank lines and a byte order mark at the beginning are skipped. */
#pragma once

#include "data/util/error.h"
#include "data/corpus/question.h"

/* Reads all questions of the file, or makes those of the set "tales"
 * (data/corpus/tales_questions.h) if path is that word. At least one question is read. Release the
 * set with questions_close. On failure there is nothing to release, though that is harmless. It
 * fails if the file cannot be read, holds no rows or is of another kind (an array, Parquet), and if
 * question_rows.h refuses a row. Messages about a row begin with "FILE:LINE: ", or
 * "FILE:LINE:COLUMN: " for bad JSON. */
int questions_open(struct question_set *set, const char *path, struct error *error);
