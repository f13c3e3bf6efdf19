#include "data/tokenize/split_pattern.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "data/tokenize/pretokenizer.h"
#include "data/tokenize/unicode.h"
#include "test/cpu_time.h"
#include "test/patterns.h"

static uint8_t *atoms;
static struct error error;

static void begin(void) {
    atoms = unicode_atoms();
    cr_assert_not_null(atoms);
}

static void end(void) {
    arrfree(atoms);
}

TestSuite(split_pattern, .init = begin, .fini = end);

static struct split_pattern *open_pattern(const char *text, enum split_dialect dialect) {
    struct split_pattern *pattern = split_pattern_open(text, dialect, atoms, &error);
    cr_assert_not_null(pattern, "%s", error.text);
    return pattern;
}

static void expect_cut(const char *pattern, const char *bars) {
    struct pretokenizer_rule rule = {.pattern = open_pattern(pattern, SPLIT_TOKENIZERS)};
    expect_cut_by(&rule, 1, bars);
    split_pattern_close(rule.pattern);
}

/* Expected pieces come from Hugging Face's tokenizers. */
Test(split_pattern, first_alternative_that_matches_is_taken) {
    expect_cut("ab|abc", "ab|c|ab|");
    expect_cut("abc|ab", "abc|ab|");
    expect_cut("a+b?", "aab|aa|c|");
    expect_cut("x{2}|x", "xx|xx|x|");
    expect_cut("x{2,3}", "xxx|xx|y|");
    expect_cut("x{2,}y", "xz|xxxy|z|");
    expect_cut("a++a|b", "aa|b|");
    expect_cut("a+a", "aaa|ba|");
    expect_cut("(?:ab|a)(?:bc|d)?c", "abc|abc|cab|");
    expect_cut("(a|b(c|d))e", "x|bde|ae|bc|");
}

Test(split_pattern, sets_and_escapes) {
    expect_cut("[a-cx\\-\\]]+", "abcx-]|d|a|");
    expect_cut("[^\\s\\p{L}]+", "a|1!|b c|");
    expect_cut("[\\u4e00-\\u9fa5\\x{3040}-\\x{30ff}]+", "a|\xe4\xb8\x96\xe3\x81\x82|b|");
    expect_cut("[^\xe4\xb8\x96\\n]+", "ab\xc3\xa4|\xe4\xb8\x96|c|");
    expect_cut("[\\S]+", "ab|  |c|");
    expect_cut("\\P{L}+", "ab|1 2|c|");
    expect_cut("\\p{Lu}\\p{Ll}+|\\p{M}|\\p{Nd}|\\p{P}+|\\p{S}",
               "Ab|C|De|.,|+|1|2|\xcc\x81|\xc2\xb2|");
    expect_cut("a|\\||\\.", "b|a|.|");
}

Test(split_pattern, case_insensitive_letters) {
    expect_cut("(?i:'s|'re)x?", "a|'S|b|'s|c|'rE|'r|");
    expect_cut("(?i:'s)", "a|'\xc5\xbf|b|");
    expect_cut("(?i:'[sd])", "a|'\xc5\xbf|b|'D|");
    expect_cut("(?i:k)", "a|\xe2\x84\xaa|K|k|");
    expect_cut("(?i:a)b", "Ab|aB|");
}

Test(split_pattern, lookahead) {
    expect_cut("\\s+(?!\\S)|\\s+", "a|  | |b|   |");
    expect_cut("a(?=b|c)", "a|bad|a|c|");
    expect_cut("a(?=bc)", "aab|a|bc|");
}

Test(split_pattern, patterns_of_known_models) {
    expect_cut(LLAMA3_PATTERN, "I|'m| WE|'LL| don|'t|123|456|7| |1|!?\n\n| x|\n\n|  | y|\t|\tz|");
    expect_cut(LLAMA3_PATTERN, "(a|).\n|  \n| | b|\r\n|");
    expect_cut(QWEN_PATTERN, "1|2|3| |4|,| a|-b|_c| \n|d|   |");
    expect_cut(O200K_PATTERN, "Hello|World| foo|BAR's| x's|/\n//|12|!|");
}

Test(split_pattern, patterns_cut_one_after_the_other) {
    struct pretokenizer_rule rules[] = {{.pattern = open_pattern("\\p{N}", SPLIT_TOKENIZERS)},
                                        {.pattern = open_pattern("[ab]+|\\s", SPLIT_TOKENIZERS)}};
    expect_cut_by(rules, 2, "ab|1|2|a|c|b|3| | |xy|");
    expect_cut_by(rules, 0, "ab1 2|");
    rules[0].drops_gaps = true;
    struct pretokenizer pretokenizer;
    size_t from, to;
    pretokenizer_begin(&pretokenizer, rules, 1, "ab1c23", 6);
    cr_expect(pretokenizer_next(&pretokenizer, &from, &to) && from == 2 && to == 3);
    cr_expect(pretokenizer_next(&pretokenizer, &from, &to) && from == 4 && to == 5);
    cr_expect(pretokenizer_next(&pretokenizer, &from, &to) && from == 5 && to == 6);
    cr_expect_not(pretokenizer_next(&pretokenizer, &from, &to));
    for (int i = 0; i < 2; i++) split_pattern_close(rules[i].pattern);
}

Test(split_pattern, the_dialect_of_tiktoken_differs) {
    struct pretokenizer_rule rule = {.pattern =
                                         open_pattern("\\p{N}{1,3}+|\\s++$|\\s", SPLIT_TIKTOKEN)};
    expect_cut_by(&rule, 1, "123|45|a| | |b|  |");
    split_pattern_close(rule.pattern);
}

Test(split_pattern, unsupported_parts_are_refused_by_name) {
    static const char *const rows[][2] = {
        {"a(?<=b)", "at \"(?<=b)\": this kind of group"},
        {"a(?<!b)", "this kind of group"},
        {"(?>a)", "this kind of group"},
        {"(?i)a", "this kind of group"},
        {"a|\\p{Han}+", "at \"\\p{Han}+\": this class of characters"},
        {"\\p{^L}", "this class of characters"},
        {"\\pL", "this class of characters"},
        {"\\w+", "at \"\\w+\": this escape"},
        {"\\d", "this escape"},
        {"\\b", "this escape"},
        {"\\1", "this escape"},
        {"a\\", "this escape"},
        {"a.b", "at \".b\": this sign"},
        {"^a", "this sign"},
        {"a$", "at \"$\": this sign"},
        {"*a", "there is nothing to repeat"},
        {"a|+", "there is nothing to repeat"},
        {"a+?", "at \"+?\": this quantifier"},
        {"a**", "this quantifier"},
        {"\\p{N}{1,3}+", "at \"{1,3}+\": this quantifier"},
        {"a{,3}", "this quantifier"},
        {"a{3,1}", "this quantifier"},
        {"a{0}", "this quantifier"},
        {"a{2000}", "this quantifier"},
        {"a{1,2}?", "this quantifier"},
        {"(?:ab)+", "a group with such a quantifier"},
        {"(?:ab)?+", "a group with such a quantifier"},
        {"(?=a)?b", "a group with such a quantifier"},
        {"(ab", "this group is not closed"},
        {"ab)", "at \")\": this parenthesis"},
        {"[ab", "this set is not closed"},
        {"[]", "this set is empty"},
        {"[a[b]]", "a set within a set"},
        {"[a&&b]", "&& in a set"},
        {"[b-a]", "this range of characters is empty"},
        {"[a-\\s]", "this is not a range"},
        {"[\\s-a]", "a class of characters is not allowed"},
        {"\\xff", "not a valid code point"},
        {"\\ud800", "not a valid code point"},
        {"\\x{110000}", "not a valid code point"},
        {"(?i:\\p{L})", "a class of characters in (?i:...)"},
        {"(?i:[^a])", "[^...] in (?i:...)"},
        {"(?i:\xc3\xa4)", "letters beyond ASCII in (?i:...)"},
        {"(?i:ss)", "these letters in (?i:...)"},
        {"(?i:fl)", "these letters in (?i:...)"},
        {"", "matches the empty text"},
        {"a?", "matches the empty text"},
        {"a|", "matches the empty text"},
        {"(?!a)", "matches the empty text"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_null(split_pattern_open(rows[i][0], SPLIT_TOKENIZERS, atoms, &error), "%s",
                       rows[i][0]);
        cr_expect_not_null(strstr(error.text, rows[i][1]), "%s: %s", rows[i][0], error.text);
    }
}

Test(split_pattern, positions_where_text_may_be_cut) {
    static const struct {
        const char *pattern, *spaces;
    } rows[] = {{GPT2_PATTERN, " \n\r\t"}, {LLAMA3_PATTERN, " \t"}, {QWEN_PATTERN, " \t"},
                {O200K_PATTERN, " \t"},    {"\\S+\\s*|\\s", ""},    {"\\p{N}", " \n\r\t"},
                {"[^\\n]+|\\n", "\n"},     {"\\S+(?! )|\\s", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct split_pattern *pattern = open_pattern(rows[i].pattern, SPLIT_TOKENIZERS);
        for (const char *c = " \n\r\t"; *c; c++)
            cr_expect_eq(split_pattern_ends_before(pattern, *c), strchr(rows[i].spaces, *c) != NULL,
                         "%s before %d", rows[i].pattern, *c);
        split_pattern_close(pattern);
    }
}

/* Returns a random text of valid and invalid characters. */
static char *random_text(size_t size, uint64_t seed) {
    static const char *const parts[] = {" ",        "  ",
                                        "\n",       "'s",
                                        "'ll",      "'",
                                        "word",     "12",
                                        "\xff",     "\xc3",
                                        "\xc3\xa4", "!?",
                                        "\xc2\xa0", "\xe6\xbc\xa2",
                                        "\t",       "\xf0\x9f\x98\x80",
                                        "X",        "\xf0\xb1\x8d\x90",
                                        "\xd9\xa1", "\xed\xa0\x80",
                                        "\r\n",     "/",
                                        "\xcc\x81"};
    char *text = NULL;
    for (uint64_t i = 0; arrlenu(text) < size; i++) {
        const char *part = parts[random_bits(seed, 0, i) % (sizeof parts / sizeof *parts)];
        memcpy(arraddnptr(text, strlen(part)), part, strlen(part));
    }
    return text;
}

/* Cuts allowed by pretokenizer_cuts_before do not change the tokens. */
Test(split_pattern, cuts_before_white_space_change_nothing) {
    static const char *const patterns[] = {GPT2_PATTERN, LLAMA3_PATTERN, QWEN_PATTERN,
                                           O200K_PATTERN};
    for (size_t i = 0; i < 4; i++) {
        const struct pretokenizer_rule rule = {.pattern =
                                                   open_pattern(patterns[i], SPLIT_TOKENIZERS)};
        cr_expect(pretokenizer_cuts_before(&rule, 1, atoms, ' '));
        for (uint64_t seed = 0; seed < 40; seed++) {
            char *text = random_text(1000, seed);
            const size_t size = arrlenu(text);
            struct pretokenizer whole, part;
            size_t from, to, begins = 0, from2, to2;
            pretokenizer_begin(&whole, &rule, 1, text, size);
            pretokenizer_begin(&part, &rule, 1, text, 0);
            while (pretokenizer_next(&whole, &from, &to)) {
                while (!pretokenizer_next(&part, &from2, &to2)) {
                    begins += part.size;
                    size_t ends = begins + 1;
                    while (ends < size && !((text[ends] == ' ') && text[ends - 1] > ' ')) ends++;
                    pretokenizer_begin(&part, &rule, 1, text + begins, ends - begins);
                }
                cr_assert(from == begins + from2 && to == begins + to2);
            }
            arrfree(text);
        }
        split_pattern_close(rule.pattern);
    }
}

Test(split_pattern, some_patterns_do_not_allow_cuts) {
    struct pretokenizer_rule rules[] = {{.pattern = open_pattern("\\p{N}", SPLIT_TOKENIZERS)},
                                        {.pattern = open_pattern(GPT2_PATTERN, SPLIT_TOKENIZERS)}};
    cr_expect(pretokenizer_cuts_before(rules, 2, atoms, ' '));
    /* The text between numbers is one piece. */
    cr_expect_not(pretokenizer_cuts_before(rules, 1, atoms, ' '));
    cr_expect_not(pretokenizer_cuts_before(rules, 0, atoms, ' '));
    for (int i = 0; i < 2; i++) split_pattern_close(rules[i].pattern);
}

struct copies {
    struct pretokenizer_rule rule;
    const char *part;
};

static void cut_copies(const void *argument, size_t size) {
    const struct copies *copies = argument;
    struct pretokenizer pretokenizer;
    size_t from, to;
    char *text = malloc(size);
    cr_assert_not_null(text);
    for (size_t i = 0; i < size; i++) text[i] = copies->part[i % strlen(copies->part)];
    pretokenizer_begin(&pretokenizer, &copies->rule, 1, text, size);
    while (pretokenizer_next(&pretokenizer, &from, &to)) {}
    free(text);
}

Test(split_pattern, hostile_texts_take_linear_time) {
    static const char *const parts[] = {"a",        "A",    " ",   "\n", "1",  "'",
                                        "!",        "\xff", " \n", "Aa", "aA", "\xe6\xbc\xa2",
                                        "\xcc\x81", "'s",   "  a"};
    static const char *const patterns[] = {LLAMA3_PATTERN, O200K_PATTERN};
    for (size_t p = 0; p < 2; p++) {
        struct copies copies = {.rule.pattern = open_pattern(patterns[p], SPLIT_TOKENIZERS)};
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
            copies.part = parts[i];
            cr_expect(grows_in_proportion(cut_copies, &copies, 1000000), "copies of part %zu", i);
        }
        split_pattern_close(copies.rule.pattern);
    }
}

/* Returns `count` copies of a part followed by `end`, by malloc. */
static char *repeated(const char *part, size_t count, const char *end) {
    const size_t length = strlen(part);
    char *text = malloc(count * length + strlen(end) + 1);
    cr_assert_not_null(text);
    for (size_t i = 0; i < count; i++) memcpy(text + i * length, part, length);
    strcpy(text + count * length, end);
    return text;
}

Test(split_pattern, a_match_of_too_many_steps_fails_and_names_the_pattern) {
    static const struct {
        const char *part, *end; /* parts of the pattern */
        size_t copies, letters;
    } rows[] = {{"(?:a|aa)", "b|[^b]", 20, 100}, {"a*", "b", 3, 1000}, {"(?:|)", "aa|a", 40, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *text = repeated("a", rows[i].letters, "");
        char *pattern = repeated(rows[i].part, rows[i].copies, rows[i].end);
        const struct pretokenizer_rule rule = {.pattern = open_pattern(pattern, SPLIT_TOKENIZERS)};
        struct pretokenizer pretokenizer;
        size_t from, to;
        pretokenizer_begin(&pretokenizer, &rule, 1, text, rows[i].letters);
        while (pretokenizer_next(&pretokenizer, &from, &to)) {}
        cr_assert_eq(pretokenizer.failed, rule.pattern, "%s", pattern);
        cr_expect_eq(split_pattern_fail(pretokenizer.failed, &error), -1);
        cr_expect_not_null(strstr(error.text, rows[i].part), "%s", error.text);
        cr_expect_not(pretokenizer_next(&pretokenizer, &from, &to), "it stays so");
        cr_expect_not(pretokenizer_cuts_before(&rule, 1, atoms, ' '));
        split_pattern_close(rule.pattern);
        free(pattern);
        free(text);
    }
}

/* The number of paths through these patterns grows exponentially with the copies. */
Test(split_pattern, opening_takes_linear_time_in_the_nodes) {
    static const char *const parts[] = {"(?:d?|e?)", "c*(?:d?+|e?+)", "(?:|d)", "(?:(?:d?)?|e)?"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char *text = repeated(parts[i], 100, "");
        cr_expect_null(split_pattern_open(text, SPLIT_TOKENIZERS, atoms, &error));
        free(text);
        text = repeated(parts[i], 3, "f");
        split_pattern_close(open_pattern(text, SPLIT_TOKENIZERS));
        free(text);
    }
}

Test(split_pattern, long_patterns_are_refused) {
    char *text = repeated("(?:a|b)", 60000, "");
    cr_expect_null(split_pattern_open(text, SPLIT_TOKENIZERS, atoms, &error));
    cr_expect_not_null(strstr(error.text, "the pattern is too long"), "%s", error.text);
    free(text);
    text = repeated("a", 4000, "");
    split_pattern_close(open_pattern(text, SPLIT_TOKENIZERS));
    free(text);
}
