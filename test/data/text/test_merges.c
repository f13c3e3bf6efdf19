#include "data/text/merges.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/random.h"
#include "test/cpu_time.h"

static struct merges merges;

static void end(void) {
    merges_free(&merges);
}

TestSuite(merges, .fini = end);

/* Merges that know each other: of 4 letters, then of what the first 300 gave. */
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

/* By the definition, one merge after the other. */
static size_t apply_plainly(int32_t *tokens, size_t count) {
    for (;;) {
        const struct merge *best = NULL;
        size_t place = 0;
        for (size_t i = 0; i + 1 < count; i++)
            for (size_t slot = 0; slot < arrlenu(merges.slots); slot++) {
                const struct merge *merge = &merges.slots[slot];
                if (merge->rank == MERGES_NO_RANK || merge->left != tokens[i] ||
                    merge->right != tokens[i + 1] || (best && best->rank <= merge->rank))
                    continue;
                best = merge;
                place = i;
            }
        if (!best) return count;
        tokens[place] = best->token;
        memmove(tokens + place + 1, tokens + place + 2, (count - place - 2) * sizeof *tokens);
        count--;
    }
}

Test(merges, are_those_of_the_definition) {
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
    const struct merge merge = {.left = 2000000, .right = 1999999, .token = 70000, .rank = 5};
    cr_expect(merges_add(&merges, merge));
    cr_expect_not(merges_add(&merges, merge));
    add_some(5000, 4);
    int32_t tokens[] = {2000000, 1999999, 7, 2000000};
    cr_expect_eq(merges_apply(&merges, &scratch, tokens, 2), 1);
    cr_expect_eq(tokens[0], 70000);
    cr_expect_eq(merges_apply(&merges, &scratch, tokens, 0), 0);
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

Test(merges, long_pieces_take_time_in_proportion) {
    add_some(300, 5);
    for (size_t period = 1; period <= 3; period++)
        cr_expect(grows_in_proportion(merge_copies, &period, 500000), "period %zu", period);
}
