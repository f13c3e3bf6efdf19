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

/* The library whose rules a pattern follows where they differ. */
enum split_dialect { SPLIT_TOKENIZERS, SPLIT_TIKTOKEN };

/* Compiles a pattern. atoms: the table of data/tokenize/unicode.h, which must outlive it. Returns
 * NULL if part of the pattern is wrong or unsupported, which the message names, and if the pattern
 * matches the empty text. */
struct split_pattern *split_pattern_open(const char *text, enum split_dialect dialect,
                                         const uint8_t *atoms, struct error *error);
void split_pattern_close(struct split_pattern *pattern);

/* Returns the text that the pattern was compiled from. */
const char *split_pattern_text(const struct split_pattern *pattern);

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

/* ---- the compiled form: nodes, which the matcher follows, and their sets of characters. Node 0
 * accepts. */

/* Real patterns have fewer than 100 nodes. The matcher's recursion depth grows with them. */
enum { SPLIT_RANGES_MAX = 16, SPLIT_BRANCHES_MAX = 64, SPLIT_NODES_MAX = 4096 };

struct split_range {
    uint32_t first, last;
};

/* A set of characters. ASCII has one flag each; other characters are included by atom or by
 * range. */
struct split_set {
    uint8_t ascii[128];
    uint32_t atoms;
    struct split_range ranges[SPLIT_RANGES_MAX]; /* beyond ASCII */
    int range_count;
    bool negated; /* code points in `ranges` are excluded; others are included by atom */
};

enum split_kind {
    SPLIT_ACCEPT,
    SPLIT_TAKE,   /* takes minimum to maximum characters of a set, greedily */
    SPLIT_CHOOSE, /* takes the first branch with which the rest matches */
    SPLIT_JOIN,   /* matches the empty text where branches meet again */
    SPLIT_AHEAD,  /* lookahead: its branch matches here, or with `negative` does not */
    SPLIT_END     /* the end of the text */
};

struct split_node {
    enum split_kind kind;
    int next;
    bool possessive; /* never gives back characters */
    bool negative;
    uint32_t minimum, maximum; /* UINT32_MAX: any number */
    struct split_set set;
    int *branches; /* stb_ds [branch_count] */
    int branch_count;
    /* Bit b of by_byte[c] is set if branch b may begin with byte c. */
    uint64_t by_byte[256];
};

struct split_pattern {
    char *text; /* by malloc */
    const uint8_t *atoms;
    struct split_node *nodes; /* stb_ds */
    int start;
};

/* Parses `text` into pattern->nodes and start; pattern->atoms must be set. Fails with the part that
 * is wrong or unsupported. The caller releases the pattern in either case. */
int split_parse(struct split_pattern *pattern, const char *text, enum split_dialect dialect,
                struct error *error);

/* The functions below add to a set, which starts as zeros. atoms: the table of
 * data/tokenize/unicode.h. */
void split_set_add_atoms(struct split_set *set, const uint8_t *atoms, uint32_t mask);

/* Adds a range; returns false if the set cannot hold more ranges. */
bool split_set_add_range(struct split_set *set, uint32_t first, uint32_t last);

/* Adds an ASCII character in both cases, and the others that fold to it: U+017F to s, U+212A to
 * k. */
bool split_set_add_folded(struct split_set *set, uint32_t code);

/* Negates the set. Call it once, after everything is added. */
void split_set_negate(struct split_set *set);

/* True if the sets are known to share no character; false is possible for disjoint sets, too. */
bool split_sets_disjoint(const struct split_set *a, const struct split_set *b);

/* True if the set may contain characters beyond ASCII. */
bool split_set_has_wide(const struct split_set *set);

/* True if the set may contain white space, or with `space` false, other characters. */
bool split_set_has(const struct split_set *set, bool space);
