/* Multiple-choice questions, in memory.
 *
 * A model answers with the choice that it finds most likely. The score of a choice is the
 * log-likelihood of its continuation after its context: the sum of log P(token | tokens before it)
 * over the continuation's tokens. acc takes the choice with the highest score, acc_norm the one
 * with the highest score / characters.
 *
 * Texts are divided into tokens as in lm-evaluation-harness (lm_eval/api/model.py, _encode_pair):
 * encode context + continuation as one text, and the context alone; both begin as the tokenizer's
 * post-processor says. A text has the context's own n tokens, then those of the whole text after
 * the first n, which are the continuation's. For an empty context, encode the continuation alone,
 * without a token before or after it, and condition it on the token that begins a text (or ends
 * one, if the tokenizer has no other). */
#pragma once

#include <stddef.h>
#include <stdint.h>

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
    size_t line;            /* line of the file, from 1; number of a question made here, from 1 */
};

struct question_set {
    struct question *questions; /* stb_ds array */
    char **texts;               /* stb_ds array of stb_ds arrays: the memory of all choices */
    size_t bytes;               /* total size of these texts */
};

/* Adds a choice with the text context + delimiter + choice, of NUL-terminated strings. White space
 * at the end of the context becomes the beginning of the continuation, as in _encode_pair, because
 * tokenizers join a space with the word after it. */
void question_add(struct question_set *set, struct question *question, const char *context,
                  const char *delimiter, const char *choice);

/* Releases the choices of a question; their texts stay in the set. */
void question_free(struct question *question);

/* Releases everything. Harmless on a zero-initialized or closed set. */
void questions_close(struct question_set *set);
