#include "model/lab/audit/audit_record.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>

static void add(struct record *record, const struct record *reference, const float *values,
                int64_t first, int64_t count, int64_t total, int batch, float unscale) {
    struct record_values part = {values, first, count, total, batch, 2, unscale};
    cr_assert_eq(record_add(record, reference, &part), 0);
}

Test(audit_record, error_is_relative_to_the_reference) {
    const float truth[] = {3, -4, 0, 0}, scaled[] = {32 * 3.5f, 32 * -4, 0, 0};
    struct record reference = {0}, record = {0};
    add(&reference, NULL, truth, 0, 4, 4, 0, 1);
    cr_expect_eq(record_error(&reference), 0);
    add(&record, &reference, scaled, 0, 4, 4, 0, 1.0f / 32);
    cr_expect_float_eq(record_error(&record), 0.1, 1e-12);
    cr_expect_eq(record.magnitudes.largest, 32 * 4, "as it is stored");
    free(reference.samples);
}

Test(audit_record, batches_are_compared_each_with_its_own) {
    const float a[] = {1, 2}, b[] = {5, 6};
    struct record reference = {0}, record = {0};
    add(&reference, NULL, a, 0, 2, 2, 0, 1);
    add(&reference, NULL, b, 0, 2, 2, 1, 1);
    add(&record, &reference, a, 0, 2, 2, 0, 1);
    add(&record, &reference, b, 0, 2, 2, 1, 1);
    cr_expect_eq(record_error(&record), 0);
    free(reference.samples);
}

/* More values than samples: both see the same ones however the rows come in. */
Test(audit_record, chunks_meet_the_samples_of_the_whole) {
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
    free(reference.samples);
    free(truth);
    free(values);
}

Test(audit_record, what_is_not_finite_is_infinitely_wrong) {
    const float truth[] = {1, 2}, values[] = {1, INFINITY}, none[] = {0, 0}, some[] = {0, 1};
    struct record reference = {0}, record = {0}, zero = {0}, other = {0};
    add(&reference, NULL, truth, 0, 2, 2, 0, 1);
    add(&record, &reference, values, 0, 2, 2, 0, 1);
    cr_expect_eq(record_error(&record), INFINITY);
    add(&zero, NULL, none, 0, 2, 2, 0, 1);
    add(&other, &zero, some, 0, 2, 2, 0, 1);
    cr_expect_eq(record_error(&other), INFINITY, "there is nothing to compare with");
    free(reference.samples);
    free(zero.samples);
}
