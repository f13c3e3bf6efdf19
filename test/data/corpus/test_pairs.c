#include "data/corpus/pairs.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/loader.h"

static struct error error;

/* A document of a pair: its prompt and answer have these many tokens. */
struct sizes {
    int prompt, answer;
};

/* Makes one shard of pairs of documents; token i of the shard is i. */
static struct tokens made_of(const struct sizes *documents, int count, uint8_t second_marks) {
    int32_t *owned = malloc(100000 * sizeof *owned);
    uint8_t *marks = calloc(100000, 1);
    struct tokens tokens;
    uint64_t size = 0;
    for (int d = 0; d < count; d++) {
        const uint64_t begin = size;
        for (int i = 0; i < documents[d].prompt + documents[d].answer; i++, size++) {
            owned[size] = (int32_t)size;
            if (i >= documents[d].prompt) marks[size] = TOKEN_COUNTS;
        }
        marks[begin] |= d % 2 ? TOKEN_BEGINS | second_marks : TOKEN_BEGINS;
    }
    cr_assert_eq(tokens_from_memory_marked(&tokens, owned, marks, size, "pairs", &error), 0, "%s",
                 error.text);
    free(marks);
    return tokens;
}

static struct loader opened(const struct tokens *tokens, int seq_len, int longest, bool prompts) {
    struct loader loader;
    const struct loader_options options = {.seq_len = seq_len,
                                           .vocab_size = 100000,
                                           .kind = &pairs_loader,
                                           .longest = longest,
                                           .prompts = prompts};
    cr_assert_eq(loader_open(&loader, tokens, &options, &error), 0, "%s", error.text);
    return loader;
}

/* Rows are those of L - 1 tokens for each document, and pairs are never divided. */
Test(pairs, fills_sequences_with_whole_pairs) {
    const struct sizes documents[] = {{3, 2}, {3, 1}, {2, 2}, {2, 3}, {4, 4}, {4, 2}};
    struct tokens tokens = made_of(documents, 6, TOKEN_REJECTED);
    struct loader loader = opened(&tokens, 14, 100, false);
    /* 4 + 3, 3 + 4, 7 + 5 rows: two pairs in one sequence, which is read first here. */
    cr_assert_eq(loader.sequence_count, 2);
    const uint64_t first = loader.packing.first[0] == 0 ? 0 : 1;
    cr_expect_eq(loader.packing.cut, 0);
    int32_t inputs[28], targets[28], keys[28], positions[28];
    struct preference_pair pairs[14];
    struct loader_arrays arrays = {.tokens = inputs,
                                   .targets = targets,
                                   .first_keys = keys,
                                   .positions = positions,
                                   .pairs = pairs};
    cr_assert_eq(loader_batch(&loader, &arrays, first, 2, &error), 0, "%s", error.text);
    cr_expect_eq(arrays.counted, 3);
    cr_expect_eq(loader_target_count(&loader, 0, 2), 3);
    cr_expect_eq(loader_target_count(&loader, first + 1, 1), 1);
    static const int32_t expected_inputs[] = {0,  1,  2,  3,  5,  6,  7,  9,  10, 11,
                                              13, 14, 15, 16, 18, 19, 20, 21, 22, 23,
                                              24, 26, 27, 28, 29, 30, 18, 18};
    static const int32_t expected_targets[] = {-1, -1, 3,  4,  -1, -1, 8,  -1, 11, 12,
                                               -1, 15, 16, 17, -1, -1, -1, 22, 23, 24,
                                               25, -1, -1, -1, 30, 31, -1, -1};
    /* In the sequence, not in the batch. */
    static const int32_t expected_keys[] = {0, 0, 0, 0, 4, 4, 4, 7, 7, 7, 10, 10, 10, 10,
                                            0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7,  7,  12, 13};
    static const int32_t expected_positions[] = {0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3,
                                                 0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0, 0};
    for (int i = 0; i < 28; i++) {
        cr_expect_eq(inputs[i], expected_inputs[i], "row %d: %d", i, inputs[i]);
        cr_expect_eq(targets[i], expected_targets[i], "row %d: %d", i, targets[i]);
        cr_expect_eq(keys[i], expected_keys[i], "row %d: %d", i, keys[i]);
        cr_expect_eq(positions[i], expected_positions[i], "row %d: %d", i, positions[i]);
    }
    static const struct preference_pair expected[] = {
        {.begin = {0, 4}, .answer = {2, 6}, .end = {4, 7}, .piece = 0},
        {.begin = {7, 10}, .answer = {8, 11}, .end = {10, 14}, .piece = 2},
        {.begin = {14, 21}, .answer = {17, 24}, .end = {21, 26}, .piece = 4},
    };
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(pairs[i].piece, expected[i].piece);
        for (int side = 0; side < PREFERENCE_SIDES; side++) {
            cr_expect_eq(pairs[i].begin[side], expected[i].begin[side]);
            cr_expect_eq(pairs[i].answer[side], expected[i].answer[side]);
            cr_expect_eq(pairs[i].end[side], expected[i].end[side]);
        }
    }
    loader_close(&loader);
    tokens_close(&tokens);
}

/* ORPO's cross entropy covers the prompt of the chosen answer. */
Test(pairs, counts_the_prompt_of_the_chosen_answer_on_request) {
    const struct sizes documents[] = {{3, 2}, {3, 1}};
    struct tokens tokens = made_of(documents, 2, TOKEN_REJECTED);
    struct loader loader = opened(&tokens, 8, 4, true);
    int32_t inputs[8], targets[8], keys[8];
    struct preference_pair pairs[4];
    struct loader_arrays arrays = {
        .tokens = inputs, .targets = targets, .first_keys = keys, .pairs = pairs};
    cr_assert_eq(loader_batch(&loader, &arrays, 0, 1, &error), 0, "%s", error.text);
    static const int32_t expected[] = {1, 2, 3, 4, -1, -1, 8, -1};
    for (int i = 0; i < 8; i++) cr_expect_eq(targets[i], expected[i], "row %d", i);
    loader_close(&loader);
    tokens_close(&tokens);
}

/* Cuts are checked for all small sizes: nothing is cut without need, both documents fit, and the
 * answer keeps its beginning and at least half of what a document may have, or all of it. */
Test(pairs, cuts_documents_that_do_not_fit) {
    enum { MOST = 9 };
    for (int seq_len = 2; seq_len <= 9; seq_len++)
        for (int longest = 1; longest <= 9; longest += 2)
            for (int shape = 0; shape < MOST * MOST * MOST * MOST; shape++) {
                const struct sizes documents[] = {{1 + shape % MOST, 1 + shape / MOST % MOST},
                                                  {1 + shape / 81 % MOST, 1 + shape / 729 % MOST}};
                if (shape % 7 != seq_len % 7) continue; /* a part of all, for speed */
                struct tokens tokens = made_of(documents, 2, TOKEN_REJECTED);
                struct loader loader = opened(&tokens, seq_len, longest, false);
                const struct packed_piece *pair = loader.packing.pieces;
                uint64_t begin = 0, rows = 0, all = 0;
                bool cut = false;
                for (int side = 0; side < PREFERENCE_SIDES; side++) {
                    const struct sizes *d = &documents[side];
                    const uint32_t given = (uint32_t)(d->prompt + d->answer - 1);
                    const uint64_t first_answer = begin + (uint64_t)d->prompt;
                    const uint32_t rows_of_side = pair[side].rows;
                    const uint64_t end = pair[side].begin + rows_of_side;
                    cr_assert_lt(pair[side].begin, first_answer);
                    cr_assert(pair[side].begin >= begin && rows_of_side <= given);
                    const uint32_t answer = (uint32_t)(end + 1 - first_answer);
                    cr_assert(answer >= 1 && answer <= (uint32_t)d->answer);
                    cr_assert(rows_of_side <= (uint32_t)longest);
                    /* The prompt is cut only if the answer has half of the rows. */
                    if (pair[side].begin > begin)
                        cr_assert(answer == (uint32_t)d->answer || 2 * answer >= rows_of_side);
                    begin = first_answer + (uint64_t)d->answer;
                    rows += rows_of_side;
                    all += given;
                    cut |= rows_of_side < given;
                }
                cr_assert_leq(rows, (uint64_t)seq_len);
                cr_assert_eq(loader.packing.cut, cut);
                const bool needed = all > (uint64_t)seq_len || pair[0].rows == (uint32_t)longest ||
                                    pair[1].rows == (uint32_t)longest;
                cr_assert(needed || !cut);
                if (all > (uint64_t)seq_len && longest >= seq_len)
                    cr_assert_eq(rows, (uint64_t)seq_len, "%d %d", seq_len, shape);
                loader_close(&loader);
                tokens_close(&tokens);
            }
}

Test(pairs, knows_labelled_rows) {
    const struct sizes documents[] = {{3, 2}, {3, 1}, {2, 2}, {2, 3}};
    struct tokens tokens = made_of(documents, 4, TOKEN_REJECTED | TOKEN_LABEL);
    struct token_mask *mask = &tokens.shards[0].mask;
    ((uint8_t *)mask->labels)[0] |= 1; /* the first answer is undesirable */
    struct loader loader = opened(&tokens, 20, 100, false);
    cr_expect(pairs_exist(&tokens) && pairs_labelled(&tokens) && loader.packing.labelled);
    int32_t inputs[20], targets[20], keys[20];
    struct preference_pair pairs[10];
    struct loader_arrays arrays = {
        .tokens = inputs, .targets = targets, .first_keys = keys, .pairs = pairs};
    cr_assert_eq(loader_batch(&loader, &arrays, 0, 1, &error), 0, "%s", error.text);
    cr_expect(arrays.counted == 2 && pairs[0].undesirable && !pairs[1].undesirable);
    loader_close(&loader);
    tokens_close(&tokens);
}

Test(pairs, refuses_sets_without_pairs) {
    struct loader loader;
    struct tokens tokens;
    const struct loader_options options = {
        .seq_len = 4, .vocab_size = 100, .kind = &pairs_loader, .longest = 4};
    int32_t *owned = calloc(40, sizeof *owned);
    cr_assert_eq(tokens_from_memory(&tokens, owned, 40, "text", &error), 0);
    cr_expect(!pairs_exist(&tokens) && !pairs_labelled(&tokens));
    cr_expect_eq(loader_open(&loader, &tokens, &options, &error), -1);
    cr_expect(strstr(error.text, "text holds no pairs"), "%s", error.text);
    tokens_close(&tokens);
}

/* A model has no positions for rows beyond its longest document, so no row may have such a one. */
Test(pairs, leaves_no_row_without_a_position) {
    const struct sizes documents[] = {{3, 2}, {3, 1}};
    struct tokens tokens = made_of(documents, 2, TOKEN_REJECTED);
    struct loader loader = opened(&tokens, 40, 4, false);
    int32_t inputs[40], targets[40], keys[40], positions[40];
    struct preference_pair pairs[20];
    struct loader_arrays arrays = {.tokens = inputs,
                                   .targets = targets,
                                   .first_keys = keys,
                                   .positions = positions,
                                   .pairs = pairs};
    cr_assert_eq(loader_batch(&loader, &arrays, 0, 1, &error), 0, "%s", error.text);
    for (int i = 0; i < 40; i++) {
        cr_expect(positions[i] >= 0 && positions[i] < 4, "row %d: %d", i, positions[i]);
        cr_expect_eq(keys[i] + positions[i], i);
        cr_expect(i < 7 || targets[i] == -1);
    }
    loader_close(&loader);
    tokens_close(&tokens);
}
