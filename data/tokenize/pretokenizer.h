/* Pre-tokenization: cuts a text into pieces by patterns that are applied one after the other. Each
 * match of a pattern is a piece, and so is each gap between two matches. The next pattern cuts
 * these pieces further ("Isolated" in Hugging Face's tokenizers). Without a pattern the text is one
 * piece.
 *
 * Bytes that are not valid UTF-8 also cut the text. A maximal run of them is one piece, and the
 * text between two runs is cut on its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenize/split_pattern.h"

enum { PRETOKENIZER_LEVELS_MAX = 8 };

/* One pattern and how it cuts. Read-only. */
struct pretokenizer_rule {
    struct split_pattern *pattern;
    bool drops_gaps; /* gaps between matches are not pieces ("Removed" with invert) */
};

struct pretokenizer_level {
    size_t at, end;                /* the rest of the piece from the previous level */
    size_t match_begin, match_end; /* the last match found; none is known if match_begin < at */
};

/* A pretokenizer for one thread. */
struct pretokenizer {
    const struct pretokenizer_rule *rules; /* [rule_count] */
    int rule_count;
    const uint8_t *text;
    size_t size;
    size_t at; /* everything before it has been passed to the levels */
    struct pretokenizer_level levels[PRETOKENIZER_LEVELS_MAX];
    uint64_t steps;                     /* steps left for all matches in this text */
    const struct split_pattern *failed; /* the pattern that ran out of steps, or NULL */
};

/* Starts on a text, which must stay valid until its last piece is returned. */
void pretokenizer_begin(struct pretokenizer *pretokenizer, const struct pretokenizer_rule *rules,
                        int rule_count, const void *text, size_t size);

/* Finds the next piece, text[*begin .. *end). Returns false at the end of the text, and if the
 * patterns take too many steps for the text's size; then `failed` is not NULL. */
bool pretokenizer_next(struct pretokenizer *pretokenizer, size_t *begin, size_t *end);

/* True if text may be cut before `space`, a white-space character that follows one that is not
 * white space, without changing the pieces. atoms: the table of data/tokenize/unicode.h. */
bool pretokenizer_cuts_before(const struct pretokenizer_rule *rules, int rule_count,
                              const uint8_t *atoms, char space);
