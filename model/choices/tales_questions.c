#include "model/choices/tales_questions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "data/corpus/tales.h"

enum {
    SEED = 0x7a1e5a5,
    TEXT_BYTES = 400000,
    CONTEXT_BYTES = 80, /* least size of a piece, which begins with a word */
    WORDS = 4,          /* words of a choice */
    CHOICE_MAX = 32
};

/* A piece of a story and the words after it, each with a NUL. */
struct piece {
    char context[TALES_QUESTION_BYTES + 1], choice[CHOICE_MAX + 1];
};

/* Cuts the piece from a position of the text on. False if the end of a story is in it, or if it is
 * too long. */
static bool cut(struct piece *piece, const char *text, size_t at) {
    const char *begin = strchr(text + at, ' ') + 1, *end = strchr(begin + CONTEXT_BYTES, ' ');
    const char *last = end;
    for (int word = 0; last && word < WORDS; word++) last = strchr(last + 1, ' ');
    if (!last || last - end > CHOICE_MAX || last - begin > TALES_QUESTION_BYTES) return false;
    if (memchr(begin, '\n', (size_t)(last - begin))) return false;
    memcpy(piece->context, begin, (size_t)(end - begin));
    piece->context[end - begin] = '\0';
    memcpy(piece->choice, end + 1, (size_t)(last - end - 1));
    piece->choice[last - end - 1] = '\0';
    return true;
}

/* Adds a question. Draws positions until all pieces are good and no choice appears twice. */
static void ask(struct question_set *set, const char *text, size_t size) {
    const uint64_t number = arrlenu(set->questions);
    struct piece pieces[TALES_QUESTION_CHOICES];
    struct question question = {.line = number + 1};
    uint64_t draw = 0;
    question.answer =
        (int)(random_permute(SEED, 0, number, TALES_QUESTIONS) % TALES_QUESTION_CHOICES);
    for (int i = 0; i < TALES_QUESTION_CHOICES;) {
        size_t at = random_bits(SEED, number + 1, draw++) % (size - 2 * TALES_QUESTION_BYTES);
        bool good = cut(&pieces[i], text, at);
        for (int j = 0; j < i && good; j++) good = strcmp(pieces[i].choice, pieces[j].choice) != 0;
        i += good;
    }
    for (int i = 0; i < TALES_QUESTION_CHOICES; i++)
        question_add(set, &question, pieces[question.answer].context, " ", pieces[i].choice);
    arrput(set->questions, question);
}

int tales_questions(struct question_set *set, struct error *error) {
    uint8_t *bytes;
    size_t size;
    if (tales_generate(&bytes, &size, SEED, TEXT_BYTES, error)) return -1;
    char *text = malloc(size + 1);
    if (text) {
        memcpy(text, bytes, size);
        text[size] = '\0';
        while (arrlenu(set->questions) < TALES_QUESTIONS) ask(set, text, size);
    }
    free(bytes);
    free(text);
    return text ? 0 : fail_memory(error, "the questions");
}
