/* Regular expressions that cut text into pieces before bytes are merged: the patterns of "Split" in
 * tokenizer.json and of tiktoken's encodings. Alternatives are tried in order and quantifiers are
 * greedy (the rules of Oniguruma and fancy-regex).
 *
 * Supported are: characters and their escapes (\n \r \t \f \v \xHH \uHHHH \x{H...}), \s \S, \p{..}
 * and \P{..} of the categories L Lu Ll Lt Lm Lo M N Nd P S, sets [...] and [^...] of all these and
 * of ranges, groups (...) and (?:...), (?i:...) around ASCII letters, lookahead (?=...) and
 * (?!...), and the quantifiers ? * + {n} {m,n} {m,} with the possessive ?+ *+ ++. A group may only
 * have the quantifier ?. Everything else is refused with a message that names it. The two
 * dialects differ as the libraries do: in tiktoken's, {m,n}+ is possessive and $ is the end of the
 * text.
 *
 * A pattern is read-only once open. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/tokenize/split_program.h"

struct split_pattern;

/* Compiles a pattern. atoms: the table of data/tokenize/unicode.h, which must outlive it. Returns
 * NULL if part of the pattern is wrong or unsupported, which the message names, and if the pattern
 * matches the empty text. */
struct split_pattern *split_pattern_open(const char *text, enum split_dialect dialect,
                                         const uint8_t *atoms, struct error *error);
void split_pattern_close(struct split_pattern *pattern);

/* Returns the end of the match that begins at text[at], or SIZE_MAX if there is none. text[0 ..
 * size) holds whole characters, and at < size.
 *
 * Time is linear in the text read for patterns in which at most one quantifier has to backtrack.
 * Others may take polynomial or exponential time, so *steps limits it. Each node and each character
 * takes one step from it. If *steps is 0 afterwards, the result is SIZE_MAX and means nothing. */
size_t split_pattern_match(const struct split_pattern *pattern, const uint8_t *text, size_t size,
                           size_t at, uint64_t *steps);

/* Writes an error that names the pattern that ran out of steps. */
int split_pattern_fail(const struct split_pattern *pattern, struct error *error);

/* True if a text may be cut before `space`, a white-space character that follows one that is not
 * white space: no match crosses that position or depends on text beyond it. */
bool split_pattern_ends_before(const struct split_pattern *pattern, char space);
