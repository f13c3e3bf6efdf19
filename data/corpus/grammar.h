/* Probabilistic grammars whose texts have a known information content.
 *
 * A grammar is a table of rules. A text is drawn by expanding rule 0. The alternatives of a rule
 * are separated by bars. For example,
 *
 *     "3:a {size} {pet:animal}|the {size}|1:nothing"
 *
 * has three, chosen with probabilities proportional to 3, 3 and 1: a leading "N:" sets the weight
 * of an alternative and of those after it, which is 1 at the beginning. An alternative emits, from
 * left to right, its letters and the expansions of its braces:
 *
 *     {size}         one alternative of rule `size`, chosen afresh
 *     {pet:animal}   one alternative of rule `animal`, remembered in this text as `pet`
 *     {pet.sound}    the field `sound` of the alternative remembered as `pet`: no choice is made
 *     {^...}         any of these, with its first letter made a capital
 *
 * A rule with fields names them after its own name ("animal: name sound"). Its alternatives are
 * plain letters, one part for each field with commas between ("duck,quacked"), and expanding the
 * rule emits the first field.
 * Each name is remembered from one rule only. A rule contains only rules that come after it in the
 * table, so none contains itself.
 *
 * The information in a text is the sum of -log2(probability) of the choices made. This is the exact
 * information content of the text if no text has two derivations, which the test of a grammar must
 * prove. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { GRAMMAR_VARIABLES_MAX = 16 };

/* A rule as it is written in a table. */
struct grammar_rule {
    const char *name; /* with fields: name, colon, names of the fields separated by spaces */
    const char *alternatives;
};

/* The compiled form of an alternative: a list of items. */
enum grammar_kind { GRAMMAR_LETTERS, GRAMMAR_RULE, GRAMMAR_FIELD };

struct grammar_item {
    enum grammar_kind kind;
    bool is_capital;
    const char *letters; /* [length] the letters, or the name of the field; not terminated */
    int length;
    int rule;     /* index of the rule to expand, or of the one that was remembered */
    int variable; /* GRAMMAR_RULE: variable to set, or -1; GRAMMAR_FIELD: variable to read */
    int field;    /* GRAMMAR_FIELD: index of the field */
};

struct grammar_alternative {
    int weight;
    struct grammar_item *items; /* stb_ds array; one item of letters per field, if it has fields */
};

struct grammar_compiled_rule {
    int weight; /* sum over all alternatives */
    bool has_fields;
    struct grammar_alternative *alternatives; /* stb_ds array */
};

struct grammar {
    struct grammar_compiled_rule *rules; /* stb_ds array, in the order of the table */
};

/* A growing text; bytes is an stb_ds array (release it with arrfree). */
struct grammar_text {
    char *bytes;
    double bits; /* information content */
};

/* Means over all texts that the grammar can produce. */
struct grammar_measure {
    double bits;
    double bytes;
};

/* Compiles a table, whose strings must outlive the grammar. A mistake in it fails an assertion. */
struct grammar grammar_compile(const struct grammar_rule *rules, int count);
void grammar_free(struct grammar *grammar);

/* Appends one text, a function of (seed, number) alone. */
void grammar_expand(const struct grammar *grammar, uint64_t seed, uint64_t number,
                    struct grammar_text *text);

/* Computes the exact expectations. The bits of a rule are the entropy of its choice plus the mean
 * of its alternatives' bits; bytes likewise. A remembered choice is independent of every other
 * choice, so the mean length of a field is its mean over that rule's alternatives. */
struct grammar_measure grammar_expect(const struct grammar *grammar);
