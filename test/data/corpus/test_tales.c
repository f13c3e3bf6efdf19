#include "data/corpus/tales.h"

#include <criterion/criterion.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/corpus/tales_grammar.h"

enum { RULES = sizeof TALES / sizeof TALES[0] };

/* The rest to expand: items from the left, as a linked list. */
struct rest {
    struct grammar_item item;
    const struct rest *next;
};

enum { ITEMS_MAX = 64 };

/* Puts an alternative's items in front of a rest, in nodes on the caller's stack. */
static const struct rest *in_front(struct rest nodes[ITEMS_MAX], const struct grammar *grammar,
                                   const struct grammar_item *reference, int alternative,
                                   const struct rest *next) {
    const struct grammar_compiled_rule *rule = &grammar->rules[reference->rule];
    const struct grammar_item *items = rule->alternatives[alternative].items;
    int count = rule->has_fields ? 1 : (int)arrlen(items);
    cr_assert_lt(count, ITEMS_MAX);
    for (int i = count - 1; i >= 0; i--) {
        nodes[i] = (struct rest){.item = items[i], .next = next};
        if (i == 0) nodes[i].item.is_capital |= reference->is_capital;
        next = &nodes[i];
    }
    return next;
}

static char first_letter(const struct grammar_item *letters) {
    char letter = letters->letters[0];
    return letters->is_capital ? (char)toupper((unsigned char)letter) : letter;
}

static struct rest without_first(const struct rest *rest) {
    struct rest shorter = *rest;
    shorter.item.letters++;
    shorter.item.length--;
    shorter.item.is_capital = 0;
    return shorter;
}

static int same_rule(const struct grammar_item *a, const struct grammar_item *b) {
    return a->kind == GRAMMAR_RULE && b->kind == GRAMMAR_RULE && a->rule == b->rule &&
           a->is_capital == b->is_capital;
}

/* True if a text of `a` can be a prefix of a text of `b`, or the reverse. A field counts as a free
 * choice among all its values, which can only find more cases. If both continue with the same rule,
 * they agree only if it makes the same choices, because that rule passes this test as well; then
 * the items after it decide. */
static int comparable(const struct grammar *grammar, const struct rest *a, const struct rest *b) {
    while (a && a->item.kind == GRAMMAR_LETTERS && a->item.length == 0) a = a->next;
    while (b && b->item.kind == GRAMMAR_LETTERS && b->item.length == 0) b = b->next;
    if (!a || !b) return 1;
    if (same_rule(&a->item, &b->item)) return comparable(grammar, a->next, b->next);
    if (a->item.kind == GRAMMAR_LETTERS && b->item.kind == GRAMMAR_LETTERS) {
        if (first_letter(&a->item) != first_letter(&b->item)) return 0;
        struct rest shorter_a = without_first(a), shorter_b = without_first(b);
        return comparable(grammar, &shorter_a, &shorter_b);
    }
    if (a->item.kind == GRAMMAR_LETTERS) return comparable(grammar, b, a);
    struct rest nodes[ITEMS_MAX];
    int is_field = a->item.kind == GRAMMAR_FIELD, rule = a->item.rule;
    for (int i = 0; i < (int)arrlen(grammar->rules[rule].alternatives); i++) {
        const struct rest *expanded = nodes;
        if (is_field) {
            nodes[0].item = grammar->rules[rule].alternatives[i].items[a->item.field];
            nodes[0].item.is_capital |= a->item.is_capital;
            nodes[0].next = a->next;
        } else {
            expanded = in_front(nodes, grammar, &a->item, i, a->next);
        }
        if (comparable(grammar, expanded, b)) return 1;
    }
    return 0;
}

/* Returns the number of pairs of alternatives that are ambiguous when read from left to right. */
static int confusions(const struct grammar *grammar, const struct grammar_rule *table) {
    int found = 0;
    struct rest left[ITEMS_MAX], right[ITEMS_MAX];
    for (int rule = 0; rule < (int)arrlen(grammar->rules); rule++) {
        struct grammar_item reference = {.kind = GRAMMAR_RULE, .rule = rule};
        int count = (int)arrlen(grammar->rules[rule].alternatives);
        for (int i = 0; i < count; i++)
            for (int j = i + 1; j < count; j++) {
                const struct rest *a = in_front(left, grammar, &reference, i, NULL);
                const struct rest *b = in_front(right, grammar, &reference, j, NULL);
                if (!comparable(grammar, a, b)) continue;
                fprintf(stderr, "rule %s: alternatives %d and %d can be confused\n",
                        table[rule].name, i, j);
                found++;
            }
    }
    return found;
}

/* A search for all derivations of a text: their number, and the bits of the last one found. */
struct parse {
    const struct grammar *grammar;
    int derivations;
    double bits;
};

static void derive(struct parse *parse, const struct rest *rest, const char *text, const char *end,
                   const int *remembered, double bits) {
    if (!rest) {
        if (text != end) return;
        parse->derivations++;
        parse->bits = bits;
        return;
    }
    struct grammar_item item = rest->item;
    if (item.kind == GRAMMAR_FIELD) {
        int chosen = remembered[item.variable], is_capital = item.is_capital;
        cr_assert_geq(chosen, 0, "a field is used before its name is remembered");
        item = parse->grammar->rules[item.rule].alternatives[chosen].items[item.field];
        item.is_capital = is_capital;
    }
    if (item.kind == GRAMMAR_LETTERS) {
        if (end - text < item.length) return;
        if (item.length && (*text != first_letter(&item) ||
                            memcmp(text + 1, item.letters + 1, (size_t)item.length - 1) != 0))
            return;
        derive(parse, rest->next, text + item.length, end, remembered, bits);
        return;
    }
    const struct grammar_compiled_rule *rule = &parse->grammar->rules[item.rule];
    for (int i = 0; i < (int)arrlen(rule->alternatives); i++) {
        struct rest nodes[ITEMS_MAX];
        int names[GRAMMAR_VARIABLES_MAX];
        memcpy(names, remembered, sizeof names);
        if (item.variable >= 0) names[item.variable] = i;
        derive(parse, in_front(nodes, parse->grammar, &item, i, rest->next), text, end, names,
               bits - log2((double)rule->alternatives[i].weight / rule->weight));
    }
}

Test(tales, no_alternative_is_ambiguous) {
    struct grammar grammar = grammar_compile(TALES, RULES);
    cr_assert_eq(confusions(&grammar, TALES), 0);
    grammar_free(&grammar);
}

Test(tales, the_ambiguity_check_finds_planted_ones) {
    static const struct grammar_rule prefixes[] = {{"s", "{w}.|cats."}, {"w", "cat|catsy|dog"}};
    static const struct grammar_rule nested[] = {
        {"s", "{a} b|{c}"}, {"c", "z|{a} bc"}, {"a", "x|y"}};
    static const struct grammar_rule fine[] = {{"s", "{a} b|{c}"}, {"c", "z|{a} c"}, {"a", "x|y"}};
    const struct {
        const struct grammar_rule *rules;
        int count, confusions;
    } cases[] = {{prefixes, 2, 1}, {nested, 3, 1}, {fine, 3, 0}};
    for (int i = 0; i < 3; i++) {
        struct grammar grammar = grammar_compile(cases[i].rules, cases[i].count);
        cr_expect_eq(confusions(&grammar, cases[i].rules), cases[i].confusions, "case %d", i);
        grammar_free(&grammar);
    }
}

Test(tales, every_story_has_one_derivation_of_the_bits_counted) {
    struct grammar grammar = grammar_compile(TALES, RULES);
    int nothing[GRAMMAR_VARIABLES_MAX];
    memset(nothing, -1, sizeof nothing);
    for (uint64_t number = 0; number < 300; number++) {
        struct grammar_text story = {0};
        grammar_expand(&grammar, 7, number, &story);
        struct parse parse = {.grammar = &grammar};
        struct rest start = {.item = {.kind = GRAMMAR_RULE, .rule = 0, .variable = -1}};
        derive(&parse, &start, story.bytes, story.bytes + arrlen(story.bytes), nothing, 0);
        cr_assert_eq(parse.derivations, 1, "story %d: %d derivations", (int)number,
                     parse.derivations);
        cr_assert_float_eq(parse.bits, story.bits, 1e-9);
        arrfree(story.bytes);
    }
    grammar_free(&grammar);
}

Test(tales, sample_agrees_with_the_exact_expectation) {
    enum { STORIES = 20000 };
    struct grammar grammar = grammar_compile(TALES, RULES);
    struct grammar_measure mean = grammar_expect(&grammar);
    struct grammar_text text = {0};
    double bits = 0, bits_squared = 0, bytes_squared = 0, total = 0;
    for (uint64_t number = 0; number < STORIES; number++) {
        double bits_before = text.bits, bytes_before = (double)arrlen(text.bytes);
        grammar_expand(&grammar, 3, number, &text);
        double story_bits = text.bits - bits_before;
        double story_bytes = (double)arrlen(text.bytes) - bytes_before;
        bits += story_bits;
        total += story_bytes;
        bits_squared += story_bits * story_bits;
        bytes_squared += story_bytes * story_bytes;
    }
    double mean_bits = bits / STORIES, mean_bytes = total / STORIES;
    double bits_error = sqrt((bits_squared / STORIES - mean_bits * mean_bits) / STORIES);
    double bytes_error = sqrt((bytes_squared / STORIES - mean_bytes * mean_bytes) / STORIES);
    /* Four standard errors: one sample in 16000 would fail, and this sample is always the same. */
    cr_assert_float_eq(mean_bits, mean.bits, 4 * bits_error);
    cr_assert_float_eq(mean_bytes, mean.bytes, 4 * bytes_error);
    cr_assert_lt(bits_error, 0.005 * mean.bits);
    cr_assert_lt(bytes_error, 0.005 * mean.bytes);
    cr_assert_float_eq(tales_nats_per_byte(), mean.bits * log(2) / mean.bytes, 1e-12);
    arrfree(text.bytes);
    grammar_free(&grammar);
}

Test(tales, text_is_a_function_of_the_seed) {
    struct error error = {0};
    uint8_t *a, *b, *c;
    size_t a_bytes, b_bytes, c_bytes;
    cr_assert_eq(tales_generate(&a, &a_bytes, 1, 5000, &error), 0, "%s", error.text);
    cr_assert_eq(tales_generate(&b, &b_bytes, 1, 20000, &error), 0, "%s", error.text);
    cr_assert_eq(tales_generate(&c, &c_bytes, 2, 5000, &error), 0, "%s", error.text);
    cr_assert_geq(a_bytes, 5000);
    cr_assert_leq(a_bytes, 5000 + 2000);
    cr_assert_arr_eq(a, b, a_bytes, "a larger size only adds stories");
    cr_assert(a_bytes != c_bytes || memcmp(a, c, a_bytes) != 0);
    cr_assert_arr_eq(b + b_bytes - 2, "\n\n", 2);
    free(a);
    free(b);
    free(c);
    cr_assert_eq(tales_generate(&a, &a_bytes, 1, 0, &error), 0);
    cr_assert_eq(a_bytes, 0);
    free(a);
}

Test(tales, is_plain_ascii_and_ends_every_story_alike) {
    struct error error = {0};
    uint8_t *text;
    size_t bytes, stories = 0;
    cr_assert_eq(tales_generate(&text, &bytes, 11, 300000, &error), 0, "%s", error.text);
    for (size_t i = 0; i < bytes; i++) {
        cr_assert(text[i] == '\n' || (text[i] >= ' ' && text[i] < 127), "byte %d", text[i]);
        if (text[i] != '\n') continue;
        cr_assert_eq(text[i + 1], '\n');
        cr_assert(i + 2 == bytes || isupper(text[i + 2]));
        stories++;
        i++;
    }
    cr_assert_gt(stories, bytes / 1000);
    free(text);
}

Test(tales, the_corpus_has_the_documented_size) {
    struct error error = {0};
    struct tokens train, val;
    cr_assert_eq(tales_tokens(&train, 0, &error), 0, "%s", error.text);
    cr_assert_eq(tales_tokens(&val, 1, &error), 0, "%s", error.text);
    cr_assert_geq(train.count, 2000000);
    cr_assert_lt(train.count, 2003000);
    cr_assert_geq(val.count, 200000);
    cr_assert_lt(val.count, 203000);
    cr_assert_eq(train.shards[0].count, train.count);
    for (uint64_t i = 0; i < train.count; i++) cr_assert_lt(train.shards[0].owned[i], 128);
    cr_assert_neq(memcmp(train.shards[0].owned, val.shards[0].owned, 4000), 0);
    double bits_per_byte = tales_nats_per_byte() / log(2);
    cr_assert_gt(bits_per_byte, 0.35);
    cr_assert_lt(bits_per_byte, 0.9);
    tokens_close(&train);
    tokens_close(&val);
}
