#include "model/choices/tales_questions.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

static struct question_set open_tales(void) {
    struct error error = {0};
    struct question_set set = {0};
    cr_assert_eq(tales_questions(&set, &error), 0, "%s", error.text);
    cr_assert_eq(arrlenu(set.questions), TALES_QUESTIONS);
    return set;
}

static int same_text(const struct choice *a, const struct choice *b) {
    return a->continuation_size == b->continuation_size &&
           memcmp(a->continuation, b->continuation, a->continuation_size) == 0;
}

Test(tales_questions, choices_of_a_question_differ) {
    struct question_set set = open_tales();
    for (int i = 0; i < TALES_QUESTIONS; i++) {
        const struct question *question = &set.questions[i];
        const struct choice *first = &question->choices[0];
        cr_assert_eq(question->count, TALES_QUESTION_CHOICES);
        cr_expect_eq(question->line, (size_t)i + 1);
        for (int j = 0; j < question->count; j++) {
            const struct choice *choice = &question->choices[j];
            const size_t size = choice->continuation_size;
            cr_expect_leq(choice->context_size + size, TALES_QUESTION_BYTES);
            cr_expect_eq(choice->context_size, first->context_size);
            cr_expect_eq(memcmp(choice->context, first->context, first->context_size), 0);
            cr_expect_geq(size, 8u);
            cr_expect_eq(choice->characters, (int64_t)size - 1);
            cr_expect_eq(choice->continuation[0], ' ');
            cr_expect_null(memchr(choice->continuation, '\n', size));
            for (int k = 0; k < j; k++)
                cr_expect_not(same_text(choice, &question->choices[k]), "question %d", i);
        }
    }
    questions_close(&set);
}

Test(tales_questions, each_index_is_the_answer_equally_often) {
    struct question_set set = open_tales();
    int count[TALES_QUESTION_CHOICES] = {0}, repeated = 0;
    for (int i = 0; i < TALES_QUESTIONS; i++) {
        cr_assert(set.questions[i].answer >= 0 && set.questions[i].answer < set.questions[i].count);
        count[set.questions[i].answer]++;
        repeated += i > 0 && set.questions[i].answer == set.questions[i - 1].answer;
    }
    for (int i = 0; i < TALES_QUESTION_CHOICES; i++)
        cr_expect_eq(count[i], TALES_QUESTIONS / TALES_QUESTION_CHOICES);
    cr_expect(repeated > 20 && repeated < 80, "%d answers equal the one before", repeated);
    questions_close(&set);
}

Test(tales_questions, are_the_same_each_time) {
    struct question_set a = open_tales(), b = open_tales();
    for (int i = 0; i < TALES_QUESTIONS; i++) {
        cr_expect_eq(a.questions[i].answer, b.questions[i].answer);
        for (int j = 0; j < TALES_QUESTION_CHOICES; j++) {
            const struct choice *x = &a.questions[i].choices[j], *y = &b.questions[i].choices[j];
            cr_expect_str_eq(x->context, y->context);
        }
    }
    cr_expect_str_eq(a.questions[0].choices[a.questions[0].answer].context,
                     "crimson basket out of green paint, feathers and wire. He hopped bravely to "
                     "the forest. On the way he");
    questions_close(&a);
    questions_close(&b);
}
