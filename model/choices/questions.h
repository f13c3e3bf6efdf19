/* Multiple-choice questions, in memory.
 *
 * A file has one question a line, of JSON Lines (others are for scripts/questions.py to convert):
 *
 *     {"context": TEXT, "choices": [TEXT, ...], "answer": INDEX}
 *
 * The context may be an array with a text for each choice. "delimiter" is the text between context
 * and choice. Without it, a space is put there, unless one of the two has white space there or the
 * context is empty. INDEX is a number from 0 or a string of digits. Other fields are ignored,
 * whatever they hold. Rows are parsed by json_parse_row, so an unpaired surrogate is read as
 * U+FFFD; a NUL character or a duplicate of a field that is read is an error. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

/* One choice of a question. Its continuation follows its context in memory, so the whole text is
 * context[0 .. context_size + continuation_size). Both are UTF-8 without NUL characters. */
struct choice {
    const char *context; /* [context_size], may be empty; does not end with white space */
    size_t context_size;
    const char *continuation; /* [continuation_size], never empty; begins with the delimiter */
    size_t continuation_size;
    int64_t characters; /* Unicode characters of the choice's own text, at least 1: of acc_norm */
};

struct question {
    struct choice *choices; /* stb_ds array */
    int count;              /* number of choices, at least 2 */
    int answer;             /* index of the right choice */
    size_t line;            /* line of the file, from 1; number of a built-in question, from 1 */
};

struct question_set {
    struct question *questions; /* stb_ds array */
    char **texts;               /* stb_ds array of stb_ds arrays: the memory of all choices */
    size_t bytes;               /* total size of these texts */
};

/* Reads all questions of the file, at least one. Release the set with questions_close. On failure
 * there is nothing to release, though that is harmless.
 *
 * It fails if the file cannot be read, holds no rows or is of another kind (an array, Parquet), or
 * if a row is not a JSON object as above, has fewer than two choices or an empty one, or has an
 * answer that is not one of them. Messages about a row begin with "FILE:LINE: ", or
 * "FILE:LINE:COLUMN: " for bad JSON. */
int questions_open(struct question_set *set, const char *path, struct error *error);

/* Releases everything. Harmless on a zero-initialized or closed set. */
void questions_close(struct question_set *set);

/* Adds a choice with the text context + delimiter + choice, of NUL-terminated strings. White space
 * at the end of the context becomes the beginning of the continuation, as in lm-evaluation-harness,
 * because tokenizers join a space with the word after it. */
void question_add(struct question_set *set, struct question *question, const char *context,
                  const char *delimiter, const char *choice);
