/* A text cut into pieces by patterns, one after the other: what a pattern matches is a piece, and
 * so is what lies between two matches; the next pattern cuts these pieces further ("Isolated" of
 * Hugging Face's tokenizers). Without a pattern the text is one piece.
 *
 * Bytes that are no characters of UTF-8 cut the text: a longest run of them is one piece, and what
 * lies between two runs is cut as if it stood alone. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenize/split_pattern.h"

enum { CUTTER_LEVELS_MAX = 8 };

/* Read-only. */
struct cutter_rule {
    struct split_pattern *pattern;
    bool drops_gaps; /* what lies between two matches is no piece ("Removed", inverted) */
};

struct cutter_level {
    size_t at, end;       /* what is left of the piece that the level before gave */
    size_t match, behind; /* the match found last; before `at`: none is known */
};

/* One thread's cutter. */
struct cutter {
    const struct cutter_rule *rules; /* [rule_count] */
    int rule_count;
    const uint8_t *text;
    size_t size;
    size_t at; /* all before was given to the levels */
    struct cutter_level levels[CUTTER_LEVELS_MAX];
    uint64_t steps;                     /* left for all matches in this text */
    const struct split_pattern *failed; /* NULL, or the pattern that took too many */
};

/* Begins with a text, which must stay until its last piece is taken. */
void cutter_begin(struct cutter *cutter, const struct cutter_rule *rules, int rule_count,
                  const void *text, size_t size);

/* The next piece: text[*begin] up to text[*end - 1]. Returns false at the end of the text, and
 * where the patterns take a number of steps that is out of proportion to the text's size: `failed`
 * is then not NULL. */
bool cutter_next(struct cutter *cutter, size_t *begin, size_t *end);

/* Whether text may be cut before `space`, a character of white space, behind one that is none,
 * without a change of the pieces. atoms: the table of data/tokenize/unicode.h. */
bool cutter_cuts_before(const struct cutter_rule *rules, int rule_count, const uint8_t *atoms,
                        char space);
