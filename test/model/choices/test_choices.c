#include "model/choices/choices.h"

#include <math.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "test/bos_tokenizer.h"
#include "test/match.h"
#include "test/scratch.h"

TestSuite(choices, .init = make_folder, .fini = remove_folder);

/* Opens a file of these rows. */
static int open_rows(struct choices *choices, const struct tokenizer *tokenizer, const char *rows) {
    const char *path = in_folder("q.jsonl");
    SUCCEEDS(file_write_whole(path, rows, strlen(rows), NULL, &error));
    return choices_open(choices, path, tokenizer, &error);
}

static struct choices opened(const char *rows) {
    struct tokenizer tokenizer;
    struct choices choices;
    SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_BYTES, NULL, &error));
    SUCCEEDS(open_rows(&choices, &tokenizer, rows));
    tokenizer_close(&tokenizer);
    return choices;
}

Test(choices, texts_are_context_and_continuation) {
    struct choices choices =
        opened("{\"context\":\"Ab \",\"choices\":[\"c\",\"de\"],\"answer\":0}\n"
               "{\"context\":\"\",\"choices\":[\"x\",\"yz\"],\"answer\":1}\n");
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
    SUCCEEDS(choices_check(&choices, 4, &error));
    cr_expect_eq(choices_check(&choices, 3, &error), -1);
    expect_match(error.text, "q.jsonl:1: ");
    choices_close(&choices);
}

Test(choices, tales_are_built_in) {
    struct tokenizer tokenizer;
    struct choices choices;
    SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_BYTES, NULL, &error));
    SUCCEEDS(choices_open(&choices, "tales", &tokenizer, &error));
    tokenizer_close(&tokenizer);
    cr_expect_eq(arrlen(choices.texts), 800);
    choices_close(&choices);
}

/* Scores per character: -6 / 1, -8 / 4; the first of equal ones is taken. */
Test(choices, accuracy_by_sum_and_by_character) {
#define ROW(answer) "{\"context\":\"q\",\"choices\":[\"a\",\"bbbb\"],\"answer\":" #answer "}\n"
    struct choices choices = opened(ROW(0) ROW(1) ROW(1) ROW(1));
    const struct question *questions = choices.set.questions;
    static const double scores[] = {-6, -8, -6, -8, -5, -2, -3, -3};
    for (int i = 0; i < 8; i++) choices.texts[i].log_likelihood = scores[i];
    cr_expect_eq(choices_answer(&questions[0], choices.texts, false), 0);
    cr_expect_eq(choices_answer(&questions[0], choices.texts, true), 1);
    cr_expect_eq(choices_answer(&questions[3], choices.texts + 6, false), 0);
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
}

/* A model that has diverged answers nothing right, rather than each question with the first
 * choice. */
Test(choices, scores_that_are_not_numbers_are_no_answers) {
    struct choices choices = opened(ROW(0) ROW(0) ROW(0));
    static const double scores[] = {(double)NAN, (double)NAN,       -1,
                                    (double)NAN, -(double)INFINITY, -(double)INFINITY};
    for (int i = 0; i < 6; i++) choices.texts[i].log_likelihood = scores[i];
    for (int i = 0; i < 3; i++)
        cr_expect_eq(choices_answer(&choices.set.questions[i], choices.texts + 2 * i, i % 2), -1,
                     "%d", i);
    cr_expect_eq(choices_accuracy(&choices).acc, 0);
    choices_close(&choices);
}

/* Opens one question, whose two choices follow a context as they are. */
static int open_pair(struct choices *choices, const struct tokenizer *tokenizer,
                     const char *context, const char *first, const char *second) {
    char row[200];
    snprintf(row, sizeof row,
             "{\"context\":\"%s\",\"choices\":[\"%s\",\"%s\"],\"delimiter\":\"\",\"answer\":0}",
             context, first, second);
    return open_rows(choices, tokenizer, row);
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
    struct tokenizer tokenizer;
    open_bos_tokenizer(&tokenizer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct choices choices;
        SUCCEEDS(
            open_pair(&choices, &tokenizer, cases[i].context, cases[i].first, cases[i].second));
        for (int k = 0; k < 2; k++) {
            const struct scored_text *text = &choices.texts[k];
            cr_expect_eq(text->first, cases[i].context_count, "%s", cases[i].context);
            cr_assert_eq(text->count, cases[i].counts[k], "%s, choice %d", cases[i].context, k);
            cr_expect_arr_eq(text->tokens, cases[i].tokens[k],
                             (size_t)text->count * sizeof *text->tokens);
        }
        choices_close(&choices);
    }
    tokenizer_close(&tokenizer);
}

static void expect_no_token(const struct tokenizer *tokenizer, const char *context,
                            const char *first, const char *second) {
    struct choices choices;
    cr_expect_eq(open_pair(&choices, tokenizer, context, first, second), -1);
    expect_match(error.text, "q.jsonl:1: choice 2 has no token of its own");
    choices_close(&choices);
}

Test(choices, a_choice_that_its_context_takes_up_is_refused) {
    struct tokenizer tokenizer;
    open_bos_tokenizer(&tokenizer);
    expect_no_token(&tokenizer, "cb", " bb", " a");
    expect_no_token(&tokenizer, "a b", " bb", "c");
    tokenizer_close(&tokenizer);
    SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_GPT2, "test/golden/tokenizer/small", &error));
    expect_no_token(&tokenizer, "t", "o x", "h"); /* "th" is one token of this vocabulary */
    tokenizer_close(&tokenizer);
}
