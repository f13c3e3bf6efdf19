/* Probabilistic grammars whose texts have a known information content.
 *
 * A grammar is a table of rules; a text is drawn by expanding rule 0. Each rule offers
 * alternatives:
 *
 *     "3:a {size} {pet:animal}"
 *
 * is chosen with a probability proportional to 3 (1 where no "N:" stands in front) and emits, from
 * left to right, its letters and what its braces stand for:
 *
 *     {size}         one alternative of rule `size`, chosen afresh
 *     {pet:animal}   one alternative of rule `animal`, remembered in this text as `pet`
 *     {pet.sound}    the field `sound` of the alternative remembered as `pet`: no choice is made
 *     {^...}         any of these, with its first letter made a capital
 *
 * A rule with fields names them ("name sound") and its alternatives are plain letters separated by
 * bars, one part a field ("duck|quacked"); expanding such a rule emits the first field. A name is
 * remembered from one rule only. A rule may not contain itself, directly or indirectly.
 *
 * The information in a text is the sum of -log2(probability) of the choices made. It is the text's
 * own information content, with nothing counted twice, if no text has two derivations; the test of
 * a grammar has to show that. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"

enum { GRAMMAR_ALTERNATIVES_MAX = 49, GRAMMAR_VARIABLES_MAX = 16, GRAMMAR_FIELDS_MAX = 8 };

/* What a person writes. The list of alternatives ends with NULL. */
struct grammar_rule {
    const char *name;
    const char *fields; /* names separated by spaces, or NULL */
    const char *alternatives[GRAMMAR_ALTERNATIVES_MAX];
};

/* What the interpreter reads. */
enum grammar_kind { GRAMMAR_LETTERS, GRAMMAR_RULE, GRAMMAR_FIELD };

struct grammar_item {
    enum grammar_kind kind;
    int is_capital;
    const char *letters; /* GRAMMAR_LETTERS: inside the rule's text, not terminated */
    int length;          /* GRAMMAR_LETTERS: bytes */
    int rule;            /* GRAMMAR_RULE: which one */
    int variable; /* GRAMMAR_RULE: where the choice is remembered, or -1; GRAMMAR_FIELD: whose */
    int field;    /* GRAMMAR_FIELD */
};

struct grammar_alternative {
    int weight;
    struct grammar_item
        *items; /* stb_ds array; of a rule with fields: one item of letters a field */
};

struct grammar_compiled_rule {
    int weight; /* of all alternatives together */
    int has_fields;
    struct grammar_alternative *alternatives; /* stb_ds array */
};

struct grammar {
    struct grammar_compiled_rule *rules; /* stb_ds array, in the order of the table */
    int variable_count;
    char variable_names[GRAMMAR_VARIABLES_MAX][24];
    int variable_rules[GRAMMAR_VARIABLES_MAX];
};

/* A growing text; bytes is an stb_ds array (release it with arrfree). */
struct grammar_text {
    char *bytes;
    double bits; /* the information in it */
};

/* Means over all texts that the grammar can produce. */
struct grammar_measure {
    double bits;
    double bytes;
};

/* Reads the table, whose strings must outlive the grammar. On failure, which only a mistake in the
 * table causes, nothing is left to release. */
int grammar_compile(struct grammar *grammar, const struct grammar_rule *rules, int count,
                    struct error *error);
void grammar_free(struct grammar *grammar);

/* Appends one text, a function of (seed, number) alone. */
void grammar_expand(const struct grammar *grammar, uint64_t seed, uint64_t number,
                    struct grammar_text *text);

/* The exact expectations, by recursion over the table: a rule's bits are the entropy of its choice
 * plus the mean of its alternatives' bits; bytes likewise. A remembered choice is independent of
 * every other choice, so the mean length of a field is its mean over that rule's alternatives. */
struct grammar_measure grammar_expect(const struct grammar *grammar);
