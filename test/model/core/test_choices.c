#include "model/core/choices.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/question.h"

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
