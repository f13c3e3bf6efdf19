/* Nodes of a pattern of data/tokenize/split_pattern.h, through which a matcher walks, and the sets of
 * characters in them. Node 0 accepts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"

/* Whose rules a pattern is written by, where they differ. */
enum split_edition { SPLIT_TOKENIZERS, SPLIT_TIKTOKEN };

/* Real patterns have fewer than 100 nodes. A matcher's stack grows with them. */
enum { SPLIT_RANGES_MAX = 16, SPLIT_BRANCHES_MAX = 64, SPLIT_NODES_MAX = 4096 };

struct split_range {
    uint32_t first, last;
};

/* Characters: of ASCII as listed; others by their atom or by ranges, or all but those. */
struct split_set {
    uint8_t ascii[128];
    uint32_t atoms;
    struct split_range ranges[SPLIT_RANGES_MAX]; /* beyond ASCII */
    int range_count;
    bool negated; /* the ranges are what it lacks of the atoms, which are all */
};

enum split_kind {
    SPLIT_ACCEPT,
    SPLIT_TAKE,   /* minimum to maximum characters of a set, as many as it can */
    SPLIT_CHOOSE, /* the first branch with which all that follows matches */
    SPLIT_JOIN,   /* nothing: where branches end */
    SPLIT_AHEAD,  /* whether its branch matches here, or with `negative` does not */
    SPLIT_END     /* of the text */
};

struct split_node {
    enum split_kind kind;
    int next;
    bool keeps; /* gives nothing back */
    bool negative;
    uint32_t minimum, maximum; /* UINT32_MAX: any number */
    struct split_set set;
    int *branches; /* stb_ds [branch_count] */
    int branch_count;
    /* By the first byte: bit b is set where branch b may match. */
    uint64_t by_byte[256];
};

struct split_pattern {
    char *text; /* by malloc */
    const uint8_t *atoms;
    struct split_node *nodes; /* stb_ds */
    int start;
};

/* Fills pattern->nodes and start from its text; pattern->atoms is set. Fails with the part that is
 * wrong or unknown; what there is then still has to be released. */
int split_parse(struct split_pattern *pattern, const char *text, enum split_edition edition,
                struct error *error);

/* All of these add to a set, which is zeros at first. atoms: the table of data/tokenize/unicode.h. */
void split_set_add_atoms(struct split_set *set, const uint8_t *atoms, uint32_t mask);

/* Returns false where the set has no room for more ranges. */
bool split_set_add_range(struct split_set *set, uint32_t first, uint32_t last);

/* An ASCII character in both cases, with the others that are folded to it: U+017F to s, U+212A to
 * k. */
bool split_set_add_folded(struct split_set *set, uint32_t code);

/* Once, when all is added: the characters that it lacks. */
void split_set_negate(struct split_set *set);

/* Whether no character is in both, as far as is easily seen. */
bool split_sets_disjoint(const struct split_set *a, const struct split_set *b);

/* Whether characters beyond ASCII, white space, and others than white space are in it. */
bool split_set_has_wide(const struct split_set *set);
bool split_set_has_space(const struct split_set *set);
bool split_set_has_other(const struct split_set *set);
