/* Regular expressions that cut text into pieces before its bytes are merged, as tokenizer.json
 * writes them in "Split" and as tiktoken's encodings come with: alternatives of which the first
 * that matches is taken, greedy (Oniguruma's and fancy-regex's rules).
 *
 * Known are characters and their escapes (\n \r \t \f \v \xHH \uHHHH \x{H...}), \s \S, \p{..} and
 * \P{..} of the categories L Lu Ll Lt Lm Lo M N Nd P S, sets [...] and [^...] of all these and of
 * ranges, groups (...) and (?:...), (?i:...) around ASCII letters, ahead (?=...) and (?!...), and
 * the quantifiers ? * + {n} {m,n} {m,} with ?+ *+ ++ that give nothing back; of a group only ?.
 * All else is refused, by name. Editions differ where the two do: in tiktoken's, {m,n}+ gives
 * nothing back and $ is the end of the text.
 *
 * Read-only once open. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/tokenize/split_program.h"

struct split_pattern;

/* atoms: the table of data/tokenize/unicode.h, which must outlive the pattern. Returns NULL with a
 * message that says which part of the pattern is wrong or unknown; the same where the pattern
 * matches the empty text. */
struct split_pattern *split_pattern_open(const char *text, enum split_edition edition,
                                         const uint8_t *atoms, struct error *error);
void split_pattern_close(struct split_pattern *pattern);

/* The end of the match that begins at text[at], or SIZE_MAX if there is none; text[0 .. size) are
 * whole characters, at < size. Takes time in proportion to what it looks at, for patterns in which
 * not more than one quantifier has to give back what it took. For others the time may grow as a
 * power of the size, or exponentially: *steps limits it and is reduced by the steps taken, one for
 * each node and each character. If *steps is 0 afterwards, the result is SIZE_MAX and means
 * nothing. */
size_t split_pattern_match(const struct split_pattern *pattern, const uint8_t *text, size_t size,
                           size_t at, uint64_t *steps);

/* Writes an error that names the pattern, whose steps ran out. */
int split_pattern_fail(const struct split_pattern *pattern, struct error *error);

/* Whether a text may be cut before `space`, a character of white space, behind one that is none:
 * whether no match goes across such a place or depends on what lies beyond. */
bool split_pattern_ends_before(const struct split_pattern *pattern, char space);
