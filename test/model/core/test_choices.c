#include "model/core/choices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/question.h"
#include "test/bos_tokenizer.h"

static void add(struct question_set *set, int answer, const char *context, const char *delimiter,
                const char *const *choices, int count) {
    struct question question = {.answer = answer, .line = arrlenu(set->questions) + 1};
    for (int i = 0; i < count; i++) question_add(set, &question, context, delimiter, choices[i]);
    arrput(set->questions, question);
}

static struct choices opened(struct question_set *set) {
    struct tokenizer tokenizer;
    struct choices choices;
    struct error error = {0};
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_BYTES, NULL, &error), 0, "%s", error.text);
    cr_assert_eq(choices_open(&choices, set, &tokenizer, "q.jsonl", &error), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
    return choices;
}

Test(choices, texts_are_context_and_continuation) {
    struct question_set set = {0};
    add(&set, 0, "Ab ", "", (const char *const[]){"c", "de"}, 2);
    add(&set, 1, "", "", (const char *const[]){"x", "yz"}, 2);
    struct choices choices = opened(&set);
    cr_assert_eq(arrlen(choices.texts), 4);
    const struct scored_text *texts = choices.texts;
    cr_expect_eq(texts[0].count, 4); /* the space belongs to the continuation */
    cr_expect_eq(texts[0].first, 2);
    cr_expect_eq(texts[1].count, 5);
    cr_expect_eq(texts[2].count, 2); /* a line break, which bytes have no other token for */
    cr_expect_eq(texts[2].first, 1);
    cr_expect_eq(texts[2].tokens[0], '\n');
    cr_expect_eq(texts[3].tokens[2], 'z');
    cr_expect_eq(texts[3].group, 1);
    cr_expect_eq(choices.rows, 3 + 4 + 1 + 2);
    cr_expect_eq(choices.longest, 4);
    struct error error = {0};
    cr_expect_eq(choices_check(&choices, 4, "q.jsonl", &error), 0);
    cr_expect_eq(choices_check(&choices, 3, "q.jsonl", &error), -1);
    cr_expect_not_null(strstr(error.text, "q.jsonl:1: "), "%s", error.text);
    choices_close(&choices);
    questions_close(&set);
}

/* Scores per character: -6 / 1, -8 / 4; the first of equal ones is taken. */
Test(choices, accuracy_by_sum_and_by_character) {
    struct question_set set = {0};
    static const char *const texts[] = {"a", "bbbb"};
    for (int i = 0; i < 4; i++) add(&set, i > 0, "q", " ", texts, 2);
    struct choices choices = opened(&set);
    static const double scores[] = {-6, -8, -6, -8, -5, -2, -3, -3};
    for (int i = 0; i < 8; i++) choices.texts[i].log_likelihood = scores[i];
    cr_expect_eq(choices_answer(&set.questions[0], choices.texts, false), 0);
    cr_expect_eq(choices_answer(&set.questions[0], choices.texts, true), 1);
    cr_expect_eq(choices_answer(&set.questions[3], choices.texts + 6, false), 0);
    struct accuracy accuracy = choices_accuracy(&choices);
    cr_expect_eq(accuracy.questions, 4);
    cr_expect_eq(accuracy.acc, 0.5);
    cr_expect_eq(accuracy.norm, 0.75);
    cr_expect_eq(accuracy.chance, 0.5);
    /* Wilson's interval for 2 of 4 and 3 of 4. */
    cr_expect_float_eq(accuracy.acc_low, 0.150039, 1e-6, "%.9g", accuracy.acc_low);
    cr_expect_float_eq(accuracy.acc_high, 0.849961, 1e-6, "%.9g", accuracy.acc_high);
    cr_expect_float_eq(accuracy.norm_low, 0.300642, 1e-6, "%.9g", accuracy.norm_low);
    cr_expect_float_eq(accuracy.norm_high, 0.954413, 1e-6, "%.9g", accuracy.norm_high);
    choices_close(&choices);
    questions_close(&set);
}

/* A model that has diverged answers nothing right, rather than each question with the first
 * choice. */
Test(choices, scores_that_are_not_numbers_are_no_answers) {
    struct question_set set = {0};
    static const char *const texts[] = {"a", "b"};
    for (int i = 0; i < 3; i++) add(&set, 0, "q", " ", texts, 2);
    struct choices choices = opened(&set);
    static const double scores[] = {(double)NAN, (double)NAN,       -1,
                                    (double)NAN, -(double)INFINITY, -(double)INFINITY};
    for (int i = 0; i < 6; i++) choices.texts[i].log_likelihood = scores[i];
    for (int i = 0; i < 3; i++)
        cr_expect_eq(choices_answer(&set.questions[i], choices.texts + 2 * i, i % 2), -1, "%d", i);
    cr_expect_eq(choices_accuracy(&choices).acc, 0);
    choices_close(&choices);
    questions_close(&set);
}

/* "th" is one token of this vocabulary, so the choice has none of its own. */
Test(choices, a_choice_without_a_token_is_refused) {
    struct question_set set = {0};
    struct tokenizer tokenizer;
    struct choices choices;
    struct error error = {0};
    add(&set, 0, "t", "", (const char *const[]){"o x", "h"}, 2);
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, "test/golden/tokenizer/small", &error),
                 0, "%s", error.text);
    cr_expect_eq(choices_open(&choices, &set, &tokenizer, "q.jsonl", &error), -1);
    cr_expect_not_null(strstr(error.text, "q.jsonl:1: choice 2 has no token of its own"), "%s",
                       error.text);
    tokenizer_close(&tokenizer);
    questions_close(&set);
}

/* Opens one question, whose two choices follow a context as they are. */
static int open_pair(struct choices *choices, struct question_set *set, const char *context,
                     const char *first, const char *second, struct error *error) {
    struct tokenizer tokenizer;
    *set = (struct question_set){0};
    add(set, 0, context, "", (const char *const[]){first, second}, 2);
    open_bos_tokenizer(&tokenizer);
    int status = choices_open(choices, set, &tokenizer, "q.jsonl", error);
    tokenizer_close(&tokenizer);
    return status;
}

/* As lm-evaluation-harness has them: the tokens of tokenizers' encode for the context, then those
 * of the whole text from the same number on. 265 spans the border of "cb" and " ac". */
Test(choices, tokens_are_those_of_the_context_and_then_of_the_whole) {
    static const struct {
        const char *context, *first, *second;
        int64_t context_count, counts[2];
        int32_t tokens[2][7];
    } cases[] = {
        {"c", " b", " a", 3, {5, 4}, {{1, 259, 262, 259, 261}, {1, 259, 262, 263}}},
        {"cb", " ac", " abc", 4, {5, 5}, {{1, 259, 262, 261, 262}, {1, 259, 262, 261, 266}}},
        {"c ", "b", "a", 3, {5, 4}, {{1, 259, 262, 259, 261}, {1, 259, 262, 263}}},
        {"<s>c", " b", " a", 3, {5, 4}, {{1, 259, 262, 259, 261}, {1, 259, 262, 263}}},
        {"", "b", "a", 1, {3, 2}, {{1, 259, 261}, {1, 263}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct choices choices;
        struct question_set set;
        struct error error = {0};
        cr_assert_eq(
            open_pair(&choices, &set, cases[i].context, cases[i].first, cases[i].second, &error), 0,
            "%s", error.text);
        for (int k = 0; k < 2; k++) {
            const struct scored_text *text = &choices.texts[k];
            cr_expect_eq(text->first, cases[i].context_count, "%s", cases[i].context);
            cr_assert_eq(text->count, cases[i].counts[k], "%s, choice %d", cases[i].context, k);
            cr_expect_arr_eq(text->tokens, cases[i].tokens[k],
                             (size_t)text->count * sizeof *text->tokens);
        }
        choices_close(&choices);
        questions_close(&set);
    }
}

Test(choices, a_choice_that_its_context_takes_up_is_refused) {
    static const char *const cases[][2] = {{"cb", " a"}, {"a b", "c"}};
    for (int i = 0; i < 2; i++) {
        struct choices choices;
        struct question_set set;
        struct error error = {0};
        cr_expect_eq(open_pair(&choices, &set, cases[i][0], " bb", cases[i][1], &error), -1);
        cr_expect_not_null(strstr(error.text, "q.jsonl:1: choice 2 has no token of its own"), "%s",
                           error.text);
        questions_close(&set);
    }
}
