#include "data/tokenize/merges.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "test/cpu_time.h"

static struct merges merges;

static void end(void) {
    merges_free(&merges);
}

TestSuite(merges, .fini = end);

/* Adds merges that build on each other: of 4 letters, then of the results of the first 300. */
static void add_some(int count, uint64_t seed) {
    for (uint32_t rank = 0; (int)merges.count < count; rank++) {
        const int32_t known = 4 + (int32_t)merges.count;
        const struct merge merge = {.left = (int32_t)(random_bits(seed, 0, rank) % (uint64_t)known),
                                    .right =
                                        (int32_t)(random_bits(seed, 1, rank) % (uint64_t)known),
                                    .token = known,
                                    .rank = (uint32_t)merges.count};
        merges_add(&merges, merge);
    }
}

/* Follows the definition, one merge after the other. */
static size_t apply_plainly(int32_t *tokens, size_t count) {
    struct merge *list = merges_list(&merges);
    for (;;) {
        const struct merge *best = NULL;
        size_t place = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (size_t rank = 0; rank < arrlenu(list); rank++) {
                if (list[rank].left != tokens[i] || list[rank].right != tokens[i + 1] ||
                    (best && best->rank <= rank))
                    continue;
                best = &list[rank];
                place = i;
            }
        if (!best) break;
        tokens[place] = best->token;
        memmove(tokens + place + 1, tokens + place + 2, (count - place - 2) * sizeof *tokens);
        count--;
    }
    arrfree(list);
    return count;
}

Test(merges, match_the_definition) {
    struct merges_scratch scratch = {0};
    int32_t tokens[120], expected[120];
    add_some(60, 1);
    for (uint64_t text = 0; text < 300; text++) {
        const size_t count = 1 + random_bits(2, text, 0) % 120;
        for (size_t i = 0; i < count; i++)
            tokens[i] = expected[i] = (int32_t)(random_bits(3, text, i) % 4);
        const size_t left = merges_apply(&merges, &scratch, tokens, count);
        cr_assert_eq(left, apply_plainly(expected, count), "text %d", (int)text);
        cr_assert_eq(memcmp(tokens, expected, left * sizeof *tokens), 0, "text %d", (int)text);
    }
    merges_scratch_free(&scratch);
}

Test(merges, a_pair_is_merged_once_and_tokens_may_be_many) {
    struct merges_scratch scratch = {0};
    const struct merge merge = {.left = 1000000, .right = 999999, .token = 70000, .rank = 6000};
    cr_expect(merges_add(&merges, merge));
    cr_expect_not(merges_add(&merges, merge));
    add_some(5000, 4);
    int32_t tokens[] = {1000000, 999999, 7, 1000000};
    cr_expect_eq(merges_apply(&merges, &scratch, tokens, 2), 1);
    cr_expect_eq(tokens[0], 70000);
    cr_expect_eq(merges_apply(&merges, &scratch, tokens, 0), 0);
    merges_scratch_free(&scratch);
}

/* One of the pairs has the same bits as an empty slot of the table. */
Test(merges, the_last_tokens_of_the_largest_vocabulary_merge) {
    enum { LAST = VOCABULARY_MAX - 1 };
    struct merges_scratch scratch = {0};
    cr_assert(merges_add(&merges, (struct merge){LAST, LAST - 1, LAST - 2, 0}));
    int32_t tokens[120] = {LAST, LAST, LAST, LAST, LAST - 1};
    const int32_t unmerged[] = {LAST, LAST, LAST, LAST - 2};
    cr_assert_eq(merges_apply(&merges, &scratch, tokens, 5), 4);
    cr_expect_arr_eq(tokens, unmerged, sizeof unmerged);
    cr_assert(merges_add(&merges, (struct merge){LAST, LAST, LAST - 3, 1}));
    const int32_t merged[] = {LAST - 3, LAST, LAST - 2};
    for (int i = 0; i < 5; i++) tokens[i] = i < 4 ? LAST : LAST - 1;
    cr_assert_eq(merges_apply(&merges, &scratch, tokens, 5), 3);
    cr_expect_arr_eq(tokens, merged, sizeof merged);
    /* Many tokens take the other code path. */
    for (int i = 0; i < 120; i++) tokens[i] = LAST - i % 2;
    cr_assert_eq(merges_apply(&merges, &scratch, tokens, 120), 60);
    for (int i = 0; i < 60; i++) cr_expect_eq(tokens[i], LAST - 2);
    merges_scratch_free(&scratch);
}

static void merge_copies(const void *argument, size_t size) {
    struct merges_scratch scratch = {0};
    int32_t *tokens = NULL;
    arrsetlen(tokens, size);
    for (size_t i = 0; i < size; i++) tokens[i] = (int32_t)(i % *(const size_t *)argument);
    merges_apply(&merges, &scratch, tokens, size);
    arrfree(tokens);
    merges_scratch_free(&scratch);
}

Test(merges, long_pieces_take_linear_time) {
    add_some(300, 5);
    for (size_t period = 1; period <= 3; period++)
        cr_expect(grows_in_proportion(merge_copies, &period, 500000), "period %zu", period);
}
