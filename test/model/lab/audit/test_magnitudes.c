#include "model/lab/audit/magnitudes.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "kernels/dtype.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct magnitudes of(const float *values, size_t count) {
    struct magnitudes magnitudes = {0};
    magnitudes_add(&magnitudes, values, count);
    return magnitudes;
}

static struct magnitudes of_one(float value) {
    return of(&value, 1);
}

static uint64_t bin(const struct magnitudes *magnitudes, int exponent) {
    return magnitudes->bins[exponent - MAGNITUDE_MIN];
}

Test(magnitudes, each_value_is_in_the_bin_of_its_exponent) {
    const float values[] = {1,    -1,   1.5f,     1.9999999f, 2,         0,        -0.0f,    65504,
                            0.5f, -3e4, 0x1p-149, 0x1.8p-148, 0x1p-126f, 0x1p127f, INFINITY, NAN};
    struct magnitudes found = of(values, COUNT(values));
    cr_expect_eq(found.count, COUNT(values));
    cr_expect_eq(found.zeros, 2);
    cr_expect_eq(found.infinite, 2, "infinity and NaN");
    cr_expect_eq(bin(&found, 0), 4);
    cr_expect_eq(bin(&found, 1), 1);
    cr_expect_eq(bin(&found, 15), 1);
    cr_expect_eq(bin(&found, 14), 1);
    cr_expect_eq(bin(&found, -1), 1);
    cr_expect_eq(bin(&found, -149), 1, "the smallest number of fp32");
    cr_expect_eq(bin(&found, -148), 1);
    cr_expect_eq(bin(&found, -126), 1);
    cr_expect_eq(bin(&found, 127), 1);
    cr_expect_eq(found.largest, 0x1p127f);
    int lowest, highest;
    cr_assert(magnitudes_range(&found, &lowest, &highest));
    cr_expect_eq(lowest, -149);
    cr_expect_eq(highest, 127);
}

/* Without a scale half of a gradient underflows and a quarter loses bits; at 2^20 neither happens.
 * Zeros are not counted as lost. */
Test(magnitudes, a_known_share_underflows_at_scale_1_and_not_at_a_larger_one) {
    const float values[] = {0x1p-30f, -0x1.8p-28f, 0x1p-26f, -0x1p-27f, 0x1p-20f,
                            0x1p-15f, 1,           -2,       0,         0};
    struct magnitudes found = of(values, COUNT(values));
    cr_expect_eq(magnitudes_lost(&found, 0), 4.0 / 8);
    cr_expect_eq(magnitudes_subnormal(&found, 0), 2.0 / 8);
    cr_expect_eq(magnitudes_lost(&found, 5), 1.0 / 8, "2^-30 times 2^5 is 2^-25, a tie");
    cr_expect_eq(magnitudes_lost(&found, 6), 0);
    cr_expect_eq(magnitudes_subnormal(&found, 6), 4.0 / 8);
    cr_expect_eq(magnitudes_subnormal(&found, 16), 0);
}

Test(magnitudes, borders_are_exact) {
    const struct {
        float value;
        double lost, subnormal;
    } cases[] = {
        {0x1p-25f, 1, 0},  {nextafterf(0x1p-25f, 1), 0, 1}, {nextafterf(0x1p-25f, 0), 1, 0},
        {0x1p-24f, 0, 1},  {nextafterf(0x1p-14f, 0), 0, 1}, {0x1p-14f, 0, 0},
        {-0x1p-25f, 1, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int scale = -3; scale <= 3; scale++) {
            struct magnitudes found = of_one(ldexpf(cases[i].value, -scale));
            cr_expect_eq(magnitudes_lost(&found, scale), cases[i].lost, "case %zu", i);
            cr_expect_eq(magnitudes_subnormal(&found, scale), cases[i].subnormal, "case %zu", i);
        }
}

/* The shares are compared with the rounding of the kernels. */
Test(magnitudes, shares_are_those_that_rounding_gives) {
    enum { N = 20000 };
    static float values[N];
    for (int i = 0; i < N; i++) {
        int exponent = -45 + (int)(random_bits(3, 0, (uint64_t)i) % 50);
        float fraction = 1 + (float)random_uniform(3, 1, (uint64_t)i);
        if (i % 7 == 0) fraction = 1;
        values[i] = ldexpf(i % 2 ? fraction : -fraction, exponent);
    }
    struct magnitudes found = of(values, N);
    for (int scale = -4; scale <= 24; scale += 7) {
        int lost = 0, subnormal = 0;
        for (int i = 0; i < N; i++) {
            float scaled = ldexpf(values[i], scale);
            bool zero = (f16_from_f32(scaled) & 0x7fff) == 0;
            lost += zero;
            subnormal += !zero && fabsf(scaled) < 0x1p-14f;
        }
        cr_expect_eq(magnitudes_lost(&found, scale), (double)lost / N, "2^%d", scale);
        cr_expect_eq(magnitudes_subnormal(&found, scale), (double)subnormal / N, "2^%d", scale);
    }
}

Test(magnitudes, headroom_counts_doublings) {
    struct magnitudes found = of_one(65504);
    cr_expect_eq(magnitudes_headroom(&found, 0), 0);
    cr_expect_eq(magnitudes_headroom(&found, 3), -3);
    found = of_one(-16376);
    cr_expect_eq(magnitudes_headroom(&found, 0), 2);
    found = of_one(100000);
    cr_expect_lt(magnitudes_headroom(&found, 0), 0);
    found = of_one(0);
    cr_expect_eq(magnitudes_headroom(&found, 5), INFINITY);
    found = of_one(NAN);
    cr_expect_eq(magnitudes_headroom(&found, 0), -INFINITY);
}

Test(magnitudes, the_safe_scale_is_the_last_one_that_does_not_overflow) {
    const float values[] = {1, 65519, 65520, 65504, 1e-7f, 3e30f, 0.9998779f, 0.9997559f};
    for (size_t i = 0; i < COUNT(values); i++) {
        int scale;
        struct magnitudes found = of_one(values[i]);
        cr_assert(magnitudes_safe_scale(&found, &scale));
        cr_expect_eq(f16_from_f32(ldexpf(values[i], scale)) & 0x7c00, 0x7c00 & ~0x400,
                     "%g: 2^%d does not reach the last exponent", (double)values[i], scale);
        cr_expect_eq(f16_from_f32(ldexpf(values[i], scale + 1)), 0x7c00, "%g: 2^%d is too low",
                     (double)values[i], scale);
    }
    int scale;
    struct magnitudes found = of_one(0x1p-149f);
    cr_expect(magnitudes_safe_scale(&found, &scale));
    cr_expect_eq(scale, 127, "a scale is an fp32 number");
    found = of_one(0);
    cr_expect_not(magnitudes_safe_scale(&found, &scale));
    found = of_one(INFINITY);
    cr_expect_not(magnitudes_safe_scale(&found, &scale));
}

Test(magnitudes, of_no_values) {
    struct magnitudes found = of_one(0);
    int lowest, highest;
    cr_expect_not(magnitudes_range(&found, &lowest, &highest));
    cr_expect_eq(magnitudes_lost(&found, 0), 0);
    cr_expect_eq(magnitudes_subnormal(&found, 0), 0);
}

Test(magnitudes, merging_is_adding) {
    const float values[] = {1, -0x1p-30f, 0, 7e4f, INFINITY, 0x1.5p-20f};
    struct magnitudes whole = of(values, COUNT(values)), part = of(values, 2);
    struct magnitudes rest = of(values + 2, COUNT(values) - 2);
    magnitudes_merge(&part, &rest);
    cr_expect_arr_eq(&part, &whole, sizeof whole);
}

/* ---- records */

static void add(struct record *record, const struct record *reference, const float *values,
                int64_t first, int64_t count, int64_t total, int batch, float unscale) {
    struct record_values part = {values, first, count, total, batch, 2, unscale};
    record_add(record, reference, &part);
}

Test(audit_record, error_is_relative_to_the_reference) {
    const float truth[] = {3, -4, 0, 0}, scaled[] = {32 * 3.5f, 32 * -4, 0, 0};
    struct record reference = {0}, record = {0};
    add(&reference, NULL, truth, 0, 4, 4, 0, 1);
    cr_expect_eq(record_error(&reference), 0);
    add(&record, &reference, scaled, 0, 4, 4, 0, 1.0f / 32);
    cr_expect_float_eq(record_error(&record), 0.1, 1e-12);
    cr_expect_eq(record.magnitudes.largest, 32 * 4, "as it is stored");
    arrfree(reference.samples);
}

Test(audit_record, batches_are_compared_separately) {
    const float a[] = {1, 2}, b[] = {5, 6};
    struct record reference = {0}, record = {0};
    add(&reference, NULL, a, 0, 2, 2, 0, 1);
    add(&reference, NULL, b, 0, 2, 2, 1, 1);
    add(&record, &reference, a, 0, 2, 2, 0, 1);
    add(&record, &reference, b, 0, 2, 2, 1, 1);
    cr_expect_eq(record_error(&record), 0);
    arrfree(reference.samples);
}

/* With more values than samples, the same values are sampled for any split into chunks of rows. */
Test(audit_record, chunks_have_the_samples_of_the_whole) {
    enum { N = 5 * RECORD_SAMPLES + 321, CHUNK = 70001 };
    float *truth = malloc(N * sizeof *truth), *values = malloc(N * sizeof *values);
    struct record reference = {0}, whole = {0}, chunks = {0};
    cr_assert(truth && values);
    for (int i = 0; i < N; i++) {
        truth[i] = (float)(i % 1000) - 500;
        values[i] = truth[i] * (i % 2 ? 1.01f : 0.99f);
    }
    add(&reference, NULL, truth, 0, N, N, 0, 1);
    cr_expect_leq(reference.sample_count, RECORD_SAMPLES);
    cr_expect_gt(reference.sample_count, RECORD_SAMPLES / 2);
    cr_expect_eq(reference.stride % 2, 1, "meets all columns");
    add(&whole, &reference, values, 0, N, N, 0, 1);
    for (int first = 0; first < N; first += CHUNK)
        add(&chunks, &reference, values + first, first, first + CHUNK < N ? CHUNK : N - first, N, 0,
            1);
    cr_expect_float_eq(record_error(&whole), 0.01, 1e-6);
    cr_expect_eq(chunks.difference, whole.difference);
    cr_expect_eq(chunks.reference, whole.reference);
    cr_expect_eq(chunks.magnitudes.count, N, "magnitudes are of all values");
    arrfree(reference.samples);
    free(truth);
    free(values);
}

Test(audit_record, non_finite_values_have_infinite_error) {
    const float truth[] = {1, 2}, values[] = {1, INFINITY}, none[] = {0, 0}, some[] = {0, 1};
    struct record reference = {0}, record = {0}, zero = {0}, other = {0};
    add(&reference, NULL, truth, 0, 2, 2, 0, 1);
    add(&record, &reference, values, 0, 2, 2, 0, 1);
    cr_expect_eq(record_error(&record), INFINITY);
    add(&zero, NULL, none, 0, 2, 2, 0, 1);
    add(&other, &zero, some, 0, 2, 2, 0, 1);
    cr_expect_eq(record_error(&other), INFINITY, "there is nothing to compare with");
    arrfree(reference.samples);
    arrfree(zero.samples);
}
