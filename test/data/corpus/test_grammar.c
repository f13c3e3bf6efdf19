#include "data/corpus/grammar.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stb/stb_ds.h>

/* One text as a string; the caller frees it with arrfree. */
static char *expanded(const struct grammar *grammar, uint64_t number, double *bits) {
    struct grammar_text text = {0};
    grammar_expand(grammar, 1, number, &text);
    arrput(text.bytes, '\0');
    *bits = text.bits;
    return text.bytes;
}

Test(grammar, without_choices_writes_one_text_of_no_information) {
    static const struct grammar_rule rules[] = {
        {"s", "a{b}c{^b}"}, {"b", "{c}!"}, {"c: x y", "one,two"}};
    struct grammar grammar = grammar_compile(rules, 3);
    double bits;
    char *text = expanded(&grammar, 5, &bits);
    cr_assert_str_eq(text, "aone!cOne!");
    cr_assert_eq(bits, 0);
    struct grammar_measure mean = grammar_expect(&grammar);
    cr_assert_eq(mean.bits, 0);
    cr_assert_eq(mean.bytes, 10);
    arrfree(text);
    grammar_free(&grammar);
}

/* Small enough to be counted by hand: 3/4 of "xa.", 1/4 of "xyyy" with a second, even choice. */
Test(grammar, expectation_matches_a_manual_count) {
    static const struct grammar_rule rules[] = {{"s", "3:xa.|1:x{n}"}, {"n", "yyy|yyyzz"}};
    struct grammar grammar = grammar_compile(rules, 2);
    struct grammar_measure mean = grammar_expect(&grammar);
    double choice = -0.75 * log2(0.75) - 0.25 * log2(0.25);
    cr_assert_float_eq(mean.bits, choice + 0.25 * 1, 1e-12);
    cr_assert_float_eq(mean.bytes, 0.75 * 3 + 0.25 * (0.5 * 4 + 0.5 * 6), 1e-12);
    int often = 0;
    for (uint64_t i = 0; i < 4000; i++) {
        double bits;
        char *text = expanded(&grammar, i, &bits);
        int is_common = strcmp(text, "xa.") == 0;
        often += is_common;
        cr_assert_float_eq(bits, is_common ? -log2(0.75) : 3, 1e-12);
        arrfree(text);
    }
    cr_assert_float_eq(often, 3000, 6 * sqrt(4000 * 0.75 * 0.25));
    grammar_free(&grammar);
}

Test(grammar, remembers_within_one_text) {
    static const struct grammar_rule rules[] = {{"s", "{who:child} and {^who.his} {who.name}"},
                                                {"child: name his", "Ann,her|3:Bob,his"}};
    struct grammar grammar = grammar_compile(rules, 2);
    int anns = 0;
    for (uint64_t i = 0; i < 200; i++) {
        double bits;
        char *text = expanded(&grammar, i, &bits);
        int is_ann = strcmp(text, "Ann and Her Ann") == 0;
        cr_assert(is_ann || strcmp(text, "Bob and His Bob") == 0, "%s", text);
        cr_assert_float_eq(bits, is_ann ? 2 : -log2(0.75), 1e-12);
        anns += is_ann;
        arrfree(text);
    }
    cr_assert(anns > 20 && anns < 80);
    cr_assert_float_eq(grammar_expect(&grammar).bytes, 15, 1e-12);
    grammar_free(&grammar);
}

Test(grammar, a_text_depends_on_seed_and_number_only) {
    static const struct grammar_rule rules[] = {{"s", "{d}{d}{d}{d}{d}{d}{d}{d}{d}{d}{d}{d}"},
                                                {"d", "0|1|2|3|4|5|6|7"}};
    struct grammar grammar = grammar_compile(rules, 2);
    double bits;
    char *a = expanded(&grammar, 3, &bits), *b = expanded(&grammar, 4, &bits);
    char *again = expanded(&grammar, 3, &bits);
    cr_assert_str_eq(a, again);
    cr_assert_str_neq(a, b);
    cr_assert_float_eq(bits, 36, 1e-12);
    arrfree(a);
    arrfree(b);
    arrfree(again);
    grammar_free(&grammar);
}

/* Each has a mistake, which fails an assertion. */
static const struct grammar_rule faulty[][3] = {
    {{"s", "a {missing}"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "a {b"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "{v:missing}"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "{v.p}"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "{v:c}{v.r}"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "{v:c}{v:b}"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "{v:b}{v.p}"}, {"b", "x"}, {"c: p q", "x,y"}},
    {{"s", "{c}"}, {"b", "x"}, {"c: p q", "x"}},
    {{"s", "{c}"}, {"b", "x"}, {"c: p q", "x,y,z"}},
    {{"s", "{b}"}, {"b", "x|{s}"}, {"c: p q", "x,y"}},
    {{"s", "{b}"}, {"b", ""}, {"c: p q", "x,y"}},
    {{"s", "{}"}, {"b", "x"}, {"c: p q", "x,y"}},
};
enum { FAULTY = sizeof faulty / sizeof *faulty };

Test(grammar, a_faulty_table_fails_an_assertion) {
    for (size_t i = 0; i < FAULTY; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            grammar_compile(faulty[i], 3);
            _exit(0);
        }
        cr_assert_eq(waitpid(child, &status, 0), child);
        cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "table %zu", i);
    }
}
