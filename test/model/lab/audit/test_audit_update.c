#include "model/lab/audit/audit.h"

#include <criterion/criterion.h>

#include <math.h>

static struct update of(const float *before, const float *after, size_t count) {
    struct update update = {0};
    update_add(&update, before, after, count);
    return update;
}

/* Above 1, bf16 has steps of 2^-7 and fp16 steps of 2^-10; half a step is a tie, rounded to the
 * even 1. */
Test(audit_update, a_known_share_is_lost) {
    const float before[] = {1, 1, 1, 1, 1, 1, 0};
    const float after[] = {1 + 0x1p-7f,  1 + 0x1p-8f,       1 + 0x1.8p-8f, 1 + 0x1p-11f,
                           1 + 0x1p-20f, 1 /* no update */, 0x1p-30f};
    struct update found = of(before, after, 7);
    cr_expect_eq(found.changed, 6);
    cr_expect_eq(found.lost[AUDIT_BF16], 3, "the tie, 2^-11 and 2^-20; beside 0 nothing is");
    cr_expect_eq(found.lost[AUDIT_FP16], 3, "2^-11, a tie, 2^-20, and 2^-30 beside 0");
    cr_expect_float_eq(update_lost(&found, AUDIT_BF16), 0.5, 1e-12);
}

Test(audit_update, decibels_compare_update_and_error) {
    const float before[] = {1, 1}, kept[] = {1 + 0x1p-7f, 1 - 0x1p-8f};
    struct update exact = of(before, kept, 2);
    cr_expect_eq(update_decibel(&exact, AUDIT_BF16), INFINITY);
    const float lost[] = {1 + 0x1p-10f, 1 + 0x1p-10f};
    struct update none = of(before, lost, 2);
    cr_expect_float_eq(update_decibel(&none, AUDIT_BF16), 0, 1e-9, "all of it is noise");
    cr_expect_eq(update_decibel(&none, AUDIT_FP16), INFINITY);
    const float more[] = {1 + 0x1.8p-8f, 1 + 0x1.8p-8f}; /* changes by 2^-7: a third too much */
    struct update wrong = of(before, more, 2);
    cr_expect_float_eq(update_decibel(&wrong, AUDIT_BF16), 20 * log10(3), 1e-9);
}

/* A 16-bit master starts rounded; that error is not counted for the update. */
Test(audit_update, the_master_starts_rounded) {
    const float before[] = {1 + 0x1p-9f}, after[] = {1 + 0x1p-9f + 0x1p-7f};
    struct update found = of(before, after, 1);
    cr_expect_eq(found.lost[AUDIT_BF16], 0);
    cr_expect_eq(found.noise[AUDIT_BF16], 0);
}

Test(audit_update, no_update_loses_nothing) {
    const struct update nothing = {0};
    cr_expect_eq(update_lost(&nothing, AUDIT_BF16), 0);
}
