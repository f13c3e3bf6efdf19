#include "data/corpus/loader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/random.h"
#include "test/data/corpus/loader_fixture.h"

static struct error error;

/* Shards of the given sizes; token t of shard s is 1000 * s + t. */
static struct tokens made_of(const uint64_t *counts, int shards) {
    struct tokens all = {0};
    for (int s = 0; s < shards; s++) {
        int32_t *owned = malloc((counts[s] + 1) * sizeof *owned);
        for (uint64_t t = 0; t < counts[s]; t++) owned[t] = 1000 * s + (int32_t)t;
        struct tokens one;
        char name[32];
        snprintf(name, sizeof name, "shard %d", s);
        cr_assert_eq(tokens_from_memory(&one, owned, counts[s], name, &error), 0);
        arrput(all.shards, one.shards[0]);
        all.count += counts[s];
        arrfree(one.shards);
    }
    return all;
}

static struct loader opened(const struct tokens *tokens, int seq_len, bool shuffle) {
    struct loader loader;
    struct loader_options options = {
        .seq_len = seq_len, .seed = 42, .shuffle = shuffle, .vocab_size = 65536};
    cr_assert_eq(loader_open(&loader, tokens, &options, &error), 0, "%s", error.text);
    return loader;
}

Test(loader, cuts_sequences_inside_shards) {
    /* Sequences of 4 tokens, and one more as the last target: 2, 0, 0, 1 and 3 of them. */
    const uint64_t counts[] = {9, 0, 1, 5, 13};
    struct tokens tokens = made_of(counts, 5);
    struct loader loader = opened(&tokens, 4, false);
    cr_assert_eq(loader.sequence_count, 6);
    cr_expect_eq(loader_tail_tokens(&loader), 0);
    const int starts[] = {0, 4, 3000, 4000, 4004, 4008};
    int32_t inputs[6 * 4], targets[6 * 4];
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 6, &error), 0, "%s", error.text);
    for (int row = 0; row < 6; row++)
        for (int t = 0; t < 4; t++) {
            cr_expect_eq(inputs[row * 4 + t], starts[row] + t, "row %d", row);
            cr_expect_eq(targets[row * 4 + t], starts[row] + t + 1, "row %d", row);
        }
    loader_close(&loader);
    tokens_close(&tokens);
}

/* Reads first keys and positions (optional) of at most 8 sequences of at most 16 tokens. */
static void isolate(const struct loader *loader, int32_t *first_keys, int32_t *positions,
                    uint64_t first_sample, int count) {
    int32_t tokens[8 * 16], targets[8 * 16];
    struct loader_arrays arrays = {
        .tokens = tokens, .targets = targets, .first_keys = first_keys, .positions = positions};
    cr_assert_eq(loader_batch(loader, &arrays, first_sample, count, &error), 0, "%s", error.text);
}

/* Each token but a shard's first is a target once, after the token before it. */
Test(loader, trains_the_ends_of_shards) {
    const uint64_t counts[] = {12, 4, 0, 1, 2, 14};
    static const uint8_t starts[] = {0x00, 0x0c}; /* 10 11 */
    for (int seq_len = 1; seq_len <= 13; seq_len++) {
        struct tokens tokens = made_of(counts, 6);
        struct loader loader = opened(&tokens, seq_len, false);
        int seen[6000] = {0}, inputs[13], targets[13], keys[13];
        uint64_t tails = 0, counted = 0, ends = 0;
        tokens.shards[0].mask.starts = starts;
        for (uint64_t k = 0; k < loader.sequence_count; k++) {
            int real = 0;
            cr_assert_eq(fetch(&loader, inputs, targets, k, 1, &error), 0);
            isolate(&loader, keys, NULL, k, 1);
            for (int t = 0; t < seq_len; t++) {
                cr_expect(keys[t] >= 0 && keys[t] <= t);
                if (targets[t] < 0) {
                    cr_expect_eq(inputs[t], inputs[0], "filled with the first token");
                    continue;
                }
                cr_expect_eq(real++, t, "a gap");
                cr_expect_eq(targets[t], inputs[t] + 1);
                seen[targets[t]]++;
            }
            cr_expect_eq(loader_target_count(&loader, k, 1), (uint64_t)real);
            counted += (uint64_t)real;
            tails += real < seq_len ? (uint64_t)real : 0;
        }
        for (int s = 0; s < 6; s++)
            for (uint64_t t = 1; t < counts[s]; t++, ends++)
                cr_expect_eq(seen[1000 * s + (int)t], 1, "length %d, shard %d, token %d", seq_len,
                             s, (int)t);
        cr_expect_eq(counted, ends);
        cr_expect_eq(loader_tail_tokens(&loader), tails);
        loader_close(&loader);
        tokens_close(&tokens);
    }
}

Test(loader, without_shuffling_wraps_around) {
    const uint64_t counts[] = {13, 9};
    struct tokens tokens = made_of(counts, 2);
    struct loader loader = opened(&tokens, 4, false);
    int32_t inputs[4], targets[4], again[4];
    for (uint64_t k = 0; k < 5; k++) {
        cr_assert_eq(fetch(&loader, inputs, targets, k, 1, &error), 0);
        cr_assert_eq(fetch(&loader, again, targets, k + UINT64_C(5000000035), 1, &error), 0);
        cr_assert_arr_eq(inputs, again, sizeof inputs);
    }
    loader_close(&loader);
    tokens_close(&tokens);
}

Test(loader, each_epoch_shows_each_sequence_once_in_its_own_order) {
    const uint64_t counts[] = {301, 0, 601, 7};
    enum { SEQUENCES = 100 + 200 + 2, LENGTH = 3 };
    struct tokens tokens = made_of(counts, 4);
    struct loader loader = opened(&tokens, LENGTH, true);
    cr_assert_eq(loader.sequence_count, SEQUENCES);
    static int32_t inputs[3][SEQUENCES * LENGTH], targets[SEQUENCES * LENGTH];
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        char seen[65536] = {0};
        cr_assert_eq(fetch(&loader, inputs[epoch], targets, epoch * SEQUENCES, SEQUENCES, &error),
                     0);
        for (int row = 0; row < SEQUENCES; row++) {
            int first = inputs[epoch][row * LENGTH];
            cr_assert_not(seen[first]);
            seen[first] = 1;
            cr_assert_eq(first % 1000 % LENGTH, 0);
            cr_assert_eq(targets[row * LENGTH + LENGTH - 1], first + LENGTH);
        }
    }
    cr_assert_neq(memcmp(inputs[0], inputs[1], sizeof inputs[0]), 0);
    cr_assert_neq(memcmp(inputs[1], inputs[2], sizeof inputs[0]), 0);
    loader_close(&loader);
    tokens_close(&tokens);
}

/* A resumed run must continue with the same batches, which includes their order. */
Test(loader, the_order_is_the_documented_one) {
    const uint64_t counts[] = {501};
    struct tokens tokens = made_of(counts, 1);
    struct loader loader = opened(&tokens, 5, true);
    int32_t inputs[5], targets[5];
    const uint64_t samples[] = {0, 1, 99, 100, 12345, UINT64_C(1) << 40};
    for (int i = 0; i < 6; i++) {
        uint64_t sequence = random_permute(42, samples[i] / 100, samples[i] % 100, 100);
        cr_assert_eq(fetch(&loader, inputs, targets, samples[i], 1, &error), 0);
        cr_assert_eq(inputs[0], (int32_t)(5 * sequence));
    }
    loader_close(&loader);
    tokens_close(&tokens);
}

Test(loader, a_sample_is_the_same_in_any_batch) {
    const uint64_t counts[] = {200, 300};
    struct tokens tokens = made_of(counts, 2);
    struct loader loader = opened(&tokens, 7, true), other = opened(&tokens, 7, true);
    enum { ROWS = 150 };
    static int32_t whole[2][ROWS * 7], inputs[7], targets[7];
    cr_assert_eq(fetch(&loader, whole[0], whole[1], 1000, ROWS, &error), 0);
    for (int row = ROWS - 1; row >= 0; row--) {
        cr_assert_eq(fetch(&other, inputs, targets, 1000 + (uint64_t)row, 1, &error), 0);
        cr_assert_arr_eq(inputs, whole[0] + row * 7, sizeof inputs);
        cr_assert_arr_eq(targets, whole[1] + row * 7, sizeof targets);
    }
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 0, &error), 0);
    loader_close(&loader);
    loader_close(&other);
    tokens_close(&tokens);
}

Test(loader, names_a_token_outside_the_vocabulary) {
    const uint64_t counts[] = {9, 9};
    struct tokens tokens = made_of(counts, 2);
    struct loader loader;
    struct loader_options options = {.seq_len = 4, .vocab_size = 1008};
    int32_t inputs[16], targets[16];
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), 0);
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 3, &error), 0, "%s", error.text);
    /* Only the very last target is outside. */
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 4, &error), -1);
    cr_assert_not_null(strstr(error.text, "shard 1: token 1008 at position 8"), "%s", error.text);
    cr_assert_not_null(strstr(error.text, "model.vocab_size to 1009"), "%s", error.text);
    loader_close(&loader);
    options.vocab_size = 3;
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), 0);
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 1, &error), -1);
    cr_assert_not_null(strstr(error.text, "shard 0: token 3 at position 3"), "%s", error.text);
    loader_close(&loader);
    tokens_close(&tokens);
}

Test(loader, checks_the_first_input_too) {
    int32_t *owned = calloc(5, sizeof *owned);
    struct tokens tokens;
    struct loader loader;
    struct loader_options options = {.seq_len = 4, .vocab_size = 7};
    int32_t inputs[4], targets[4];
    owned[0] = 7;
    cr_assert_eq(tokens_from_memory(&tokens, owned, 5, "mine", &error), 0);
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), 0);
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 1, &error), -1);
    cr_assert_not_null(strstr(error.text, "mine: token 7 at position 0"), "%s", error.text);
    loader_close(&loader);
    tokens_close(&tokens);
}

Test(loader, refuses_tokens_too_few_for_one_sequence) {
    const uint64_t counts[] = {4, 2, 0};
    struct tokens tokens = made_of(counts, 3), none = {0};
    struct loader loader;
    struct loader_options options = {.seq_len = 4, .vocab_size = 65536};
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), -1);
    cr_assert_not_null(strstr(error.text, "4 there, 5 needed"), "%s", error.text);
    cr_assert_not_null(strstr(error.text, "shard 0"), "%s", error.text);
    cr_assert_eq(loader_open(&loader, &none, &options, &error), -1);
    options.seq_len = 3;
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), 0, "%s", error.text);
    cr_assert_eq(loader.sequence_count, 2);
    loader_close(&loader);
    options.seq_len = 2147483647;
    cr_assert_eq(loader_open(&loader, &tokens, &options, &error), -1);
    cr_assert_not_null(strstr(error.text, "2147483648 needed"), "%s", error.text);
    tokens_close(&tokens);
}

/* Tokens that do not count are not targets, also across the ends of sequences and shards; inputs
 * are unchanged. */
Test(loader, a_mask_removes_targets) {
    const uint64_t counts[] = {13, 5, 9};
    static const uint8_t bits[] = {0xe6, 0x11}, none[] = {0x01, 0x00}; /* none: as a target */
    struct tokens tokens = made_of(counts, 3);
    tokens.shards[0].mask.bits = bits; /* 1 2 5 6 7 8 12 count */
    tokens.shards[2].mask.bits = none;
    struct loader loader = opened(&tokens, 4, false);
    cr_assert_eq(loader.sequence_count, 6);
    const int32_t expected[6 * 4] = {1,    2,    -1,   -1,   5,  6,  7,  8,  -1, -1, -1, 12,
                                     1001, 1002, 1003, 1004, -1, -1, -1, -1, -1, -1, -1, -1};
    int32_t inputs[6 * 4], targets[6 * 4];
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 6, &error), 0, "%s", error.text);
    cr_expect_arr_eq(targets, expected, sizeof expected);
    for (int i = 0; i < 12; i++) cr_expect_eq(inputs[i], i);
    for (uint64_t first = 0; first < 12; first++)
        for (uint64_t count = 0; count < 8; count++) {
            uint64_t counted = 0;
            for (uint64_t i = 4 * first; i < 4 * (first + count); i++)
                counted += expected[i % 24] >= 0;
            cr_expect_eq(loader_target_count(&loader, first, count), counted);
        }
    loader_close(&loader);
    tokens_close(&tokens);
}

/* Documents begin where the mask says, and at the first token of a sequence. */
Test(loader, isolates_documents) {
    const uint64_t counts[] = {13, 9};
    static const uint8_t starts[] = {0x23, 0x09}; /* 0 1 5 8 11 */
    struct tokens tokens = made_of(counts, 2);
    struct loader loader = opened(&tokens, 4, false);
    cr_expect_not(loader_has_starts(&loader));
    tokens.shards[0].mask.starts = starts;
    cr_expect(loader_has_starts(&loader));
    static const int32_t first[5 * 4] = {0, 1, 1, 1, 0, 1, 1, 1, 0, 0,
                                         0, 3, 0, 0, 0, 0, 0, 0, 0, 0};
    int32_t got[5 * 4], positions[5 * 4];
    isolate(&loader, got, positions, 0, 5);
    cr_expect_arr_eq(got, first, sizeof first);
    for (int i = 0; i < 5 * 4; i++) cr_expect_eq(positions[i], i % 4 - first[i]);
    loader_close(&loader);
    tokens_close(&tokens);
}

/* A token that does not count must still be in the vocabulary. */
Test(loader, tokens_that_do_not_count_are_checked_too) {
    const uint64_t counts[] = {5};
    static const uint8_t bits[] = {0x02};
    struct tokens tokens = made_of(counts, 1);
    int32_t inputs[4], targets[4];
    tokens.shards[0].mask.bits = bits;
    struct loader loader = opened(&tokens, 4, true);
    cr_assert_eq(fetch(&loader, inputs, targets, 0, 1, &error), 0, "%s", error.text);
    cr_expect_arr_eq(targets, ((const int32_t[]){1, -1, -1, -1}), sizeof targets);
    tokens.shards[0].owned[4] = 65536;
    cr_expect_eq(fetch(&loader, inputs, targets, 0, 1, &error), -1);
    cr_expect_not_null(strstr(error.text, "position 4 is outside the vocabulary"), "%s",
                       error.text);
    loader_close(&loader);
    tokens_close(&tokens);
}
