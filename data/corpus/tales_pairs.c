#include "data/corpus/tales_pairs.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/random.h"
#include "data/corpus/tales.h"

enum {
    PROMPT_BYTES = 60, /* least size of a prompt, which begins and ends with a word */
    ANSWER_BYTES_MIN = 20,
    ANSWER_BYTES_MAX = 60,
    WORDS_MIN = 4,
    WORDS_MAX = ANSWER_BYTES_MAX / 2
};

/* The stories and the pairs so far. */
struct maker {
    uint64_t seed, pair, draws; /* draws: random numbers used for this pair */
    char *text;                 /* [size], ends with NUL */
    size_t size;
    int32_t *tokens; /* [count] */
    uint8_t *marks;  /* [count] */
    size_t count;
};

struct piece {
    const char *prompt, *answer; /* the answer follows the prompt and begins with a space */
    size_t prompt_size, answer_size;
};

static uint64_t draw(struct maker *maker) {
    return random_bits(maker->seed, maker->pair, maker->draws++);
}

static size_t count_words(const char *text, size_t size) {
    size_t words = 0;
    for (size_t i = 0; i < size; i++) words += text[i] == ' ';
    return words;
}

/* Cuts a prompt and the rest of its last sentence from a position of the text on. False if they do
 * not have the sizes above or are not within one story. */
static bool cut(struct piece *piece, const char *text) {
    const char *begin = strchr(text, ' ');
    const char *middle = begin ? strchr(begin + 1 + PROMPT_BYTES, ' ') : NULL;
    const char *end = middle ? strchr(middle, '.') : NULL;
    if (!end || (end[1] != ' ' && end[1] != '\n')) return false;
    *piece =
        (struct piece){begin + 1, middle, (size_t)(middle - begin) - 1, (size_t)(end - middle) + 1};
    return !memchr(begin, '\n', (size_t)(end - begin)) && piece->answer_size >= ANSWER_BYTES_MIN &&
           piece->answer_size <= ANSWER_BYTES_MAX &&
           piece->prompt_size + piece->answer_size <= TALES_PAIRS_DOCUMENT_BYTES &&
           count_words(middle, piece->answer_size) >= WORDS_MIN;
}

static struct piece draw_piece(struct maker *maker) {
    struct piece piece;
    while (!cut(&piece, maker->text + draw(maker) % (maker->size - TALES_PAIRS_DOCUMENT_BYTES)))
        continue;
    return piece;
}

/* Writes the words of an answer in another order: wrong [answer_size]. */
static void shuffle(struct maker *maker, const struct piece *piece, char *wrong) {
    const char *words[WORDS_MAX], *at = piece->answer;
    const uint64_t count = count_words(at, piece->answer_size), stream = draw(maker);
    for (uint64_t i = 0; i < count; at = strpbrk(at + 1, " .")) words[i++] = at;
    for (uint64_t i = 0; i < count; i++) {
        const char *word = words[random_permute(maker->seed, stream, i, count)];
        const size_t size = 1 + strcspn(word + 1, " .");
        memcpy(wrong, word, size);
        wrong += size;
    }
    *wrong = '.';
}

/* Writes a wrong answer, and returns its size. */
static size_t make_wrong(struct maker *maker, const struct piece *piece, char *wrong) {
    for (;;) {
        const struct piece other = maker->pair % 2 ? draw_piece(maker) : *piece;
        const size_t size = other.answer_size, right = piece->answer_size;
        if (maker->pair % 2) memcpy(wrong, other.answer, size);
        else shuffle(maker, piece, wrong);
        const bool is_equal = size == right && memcmp(wrong, piece->answer, size) == 0;
        if (!is_equal && size + TALES_PAIRS_LENGTHS >= right && size <= right + TALES_PAIRS_LENGTHS)
            return size;
    }
}

static void put(struct maker *maker, const char *text, size_t size, uint8_t first, uint8_t rest) {
    for (size_t i = 0; i < size; i++) {
        maker->tokens[maker->count] = text[i];
        maker->marks[maker->count++] = i == 0 ? first : rest;
    }
}

static void put_pair(struct maker *maker) {
    char wrong[ANSWER_BYTES_MAX];
    const struct piece piece = draw_piece(maker);
    const size_t wrong_size = make_wrong(maker, &piece, wrong);
    put(maker, piece.prompt, piece.prompt_size, TOKEN_BEGINS, 0);
    put(maker, piece.answer, piece.answer_size, TOKEN_COUNTS, TOKEN_COUNTS);
    put(maker, piece.prompt, piece.prompt_size, TOKEN_BEGINS | TOKEN_REJECTED, 0);
    put(maker, wrong, wrong_size, TOKEN_COUNTS, TOKEN_COUNTS);
}

int tales_pairs(struct tokens *tokens, int is_validation, struct error *error) {
    const uint64_t pairs = is_validation ? TALES_PAIRS_VALIDATION : TALES_PAIRS;
    const size_t tokens_max = pairs * 2 * (TALES_PAIRS_DOCUMENT_BYTES + TALES_PAIRS_LENGTHS);
    struct maker maker = {.seed = TALES_PAIRS_SEED + (is_validation != 0)};
    uint8_t *bytes;
    memset(tokens, 0, sizeof *tokens);
    if (tales_generate(&bytes, &maker.size, maker.seed, TALES_PAIRS_TEXT_BYTES, error)) return -1;
    maker.text = malloc(maker.size + 1);
    maker.tokens = malloc(tokens_max * sizeof *maker.tokens);
    maker.marks = malloc(tokens_max);
    const bool made = maker.text && maker.tokens && maker.marks;
    if (made) {
        memcpy(maker.text, bytes, maker.size);
        maker.text[maker.size] = '\0';
        for (; maker.pair < pairs; maker.pair++, maker.draws = 0) put_pair(&maker);
    } else {
        free(maker.tokens);
    }
    const int status =
        made ? tokens_from_memory_marked(tokens, maker.tokens, maker.marks, maker.count,
                                         is_validation ? "tales (validation)" : "tales", error)
             : fail_memory(error, "%zu tokens of tales", tokens_max);
    free(bytes);
    free(maker.text);
    free(maker.marks);
    return status;
}
