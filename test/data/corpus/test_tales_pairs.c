/* The built-in pairs: the chosen answer is a story's own, the rejected one is in no story. */
#include "data/corpus/tales_pairs.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/tales.h"

struct document {
    char text[TALES_PAIRS_DOCUMENT_BYTES + TALES_PAIRS_LENGTHS + 1];
    size_t prompt; /* bytes of the prompt */
    bool rejected, labelled;
};

/* Reads the documents of a set, an stb_ds array; the caller frees it with arrfree. */
static struct document *read_documents(int is_validation) {
    struct error error;
    struct tokens tokens;
    struct document *documents = NULL;
    cr_assert_eq(tales_pairs(&tokens, is_validation, &error), 0, "%s", error.text);
    cr_assert_eq(arrlen(tokens.shards), 1);
    const struct token_shard *shard = &tokens.shards[0];
    const struct token_mask *mask = &shard->mask;
    int32_t *all = malloc(shard->count * sizeof *all);
    cr_assert_eq(token_shard_read(shard, all, 0, shard->count, &error), 0);
    cr_assert(token_mask_has_pairs(mask));
    size_t size = 0;
    for (uint64_t i = 0; i < shard->count; i++) {
        if (token_mask_begins(mask, i)) {
            arrput(documents, ((struct document){.rejected = token_mask_is_rejected(mask, i),
                                                 .labelled = token_mask_has_label(mask, i)}));
            size = 0;
        }
        struct document *document = &arrlast(documents);
        cr_assert_lt(size + 1, sizeof document->text);
        document->text[size++] = (char)all[i];
        if (!token_mask_in_loss(mask, i))
            cr_assert_eq(++document->prompt, size, "only the answer counts");
    }
    free(all);
    tokens_close(&tokens);
    return documents;
}

static int by_byte(const void *a, const void *b) {
    return *(const char *)a - *(const char *)b;
}

static bool have_same_bytes(const char *one, const char *other) {
    char a[200], b[200];
    strcpy(a, one);
    strcpy(b, other);
    qsort(a, strlen(a), 1, by_byte);
    qsort(b, strlen(b), 1, by_byte);
    return strcmp(a, b) == 0;
}

static void check_pair(const struct document *pair, const char *stories, bool is_shuffled) {
    const size_t prompt = pair[0].prompt;
    const char *chosen = pair[0].text + prompt, *rejected = pair[1].text + prompt;
    const long difference = labs((long)strlen(chosen) - (long)strlen(rejected));
    cr_expect(!pair[0].rejected && pair[1].rejected);
    cr_expect(!pair[0].labelled && !pair[1].labelled);
    cr_expect_eq(prompt, pair[1].prompt);
    cr_expect(prompt >= 60 && memcmp(pair[0].text, pair[1].text, prompt) == 0);
    cr_expect(*chosen == ' ' && *rejected == ' ');
    cr_expect(chosen[strlen(chosen) - 1] == '.' && rejected[strlen(rejected) - 1] == '.');
    cr_expect_not_null(strstr(stories, pair[0].text), "%s", pair[0].text);
    cr_expect_null(strstr(stories, pair[1].text), "%s", pair[1].text);
    cr_expect_leq(difference, is_shuffled ? 0 : TALES_PAIRS_LENGTHS);
    if (is_shuffled) cr_expect(have_same_bytes(chosen, rejected), "%s", pair[1].text);
    else cr_expect_not_null(strstr(stories, rejected), "%s", rejected);
}

static char *generate(uint64_t seed) {
    struct error error;
    uint8_t *bytes;
    size_t size;
    cr_assert_eq(tales_generate(&bytes, &size, seed, TALES_PAIRS_TEXT_BYTES, &error), 0);
    char *text = realloc(bytes, size + 1);
    text[size] = '\0';
    return text;
}

Test(tales_pairs, the_chosen_answer_is_the_storys_own) {
    for (int is_validation = 0; is_validation <= 1; is_validation++) {
        char *stories = generate(TALES_PAIRS_SEED + (uint64_t)is_validation);
        struct document *documents = read_documents(is_validation);
        cr_assert_eq(arrlen(documents), 2 * (is_validation ? TALES_PAIRS_VALIDATION : TALES_PAIRS));
        size_t bytes = 0;
        for (ptrdiff_t i = 0; i < arrlen(documents); i += 2) {
            check_pair(documents + i, stories, i / 2 % 2 == 0);
            bytes += strlen(documents[i].text) + strlen(documents[i + 1].text);
        }
        const double mean = 2.0 * (double)bytes / (double)arrlen(documents);
        cr_expect(mean > 180 && mean < 230, "%.1f bytes in a pair", mean);
        arrfree(documents);
        free(stories);
    }
}

Test(tales_pairs, are_always_the_same_and_those_of_validation_are_others) {
    struct document *first = read_documents(0), *second = read_documents(0),
                    *validation = read_documents(1);
    cr_assert_eq(arrlen(first), arrlen(second));
    for (ptrdiff_t i = 0; i < arrlen(first); i++) {
        cr_assert_str_eq(first[i].text, second[i].text);
        for (ptrdiff_t j = 0; j < arrlen(validation); j++)
            cr_assert_str_neq(first[i].text, validation[j].text);
    }
    arrfree(first);
    arrfree(second);
    arrfree(validation);
}
