/* Statistics with known values, and the decision when a difference is real. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "data/util/random.h"
#include "data/util/statistics.h"
#include "test/cpu_time.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static void expect_near(double found, double expected, const char *what) {
    cr_expect(fabs(found - expected) <= 1e-9 * (1 + fabs(expected)), "%s: %.12g, expected %.12g",
              what, found, expected);
}

Test(statistics, mean_deviation_median) {
    static const double four[] = {1, 2, 4, 9}, three[] = {9, 1, 2};
    expect_near(mean_of(four, 4), 4, "mean");
    expect_near(deviation_of(four, 4), sqrt(38.0 / 3), "deviation of a sample");
    expect_near(median_of(four, 4), 3, "median of an even number");
    expect_near(median_of(three, 3), 2, "median of an odd number");
}

Test(statistics, non_finite_values_are_missing) {
    static const double values[] = {NAN, 1, INFINITY, 2, -INFINITY, 6, NAN};
    expect_near(mean_of(values, COUNT(values)), 3, "mean");
    expect_near(median_of(values, COUNT(values)), 2, "median");
    expect_near(deviation_of(values, COUNT(values)), sqrt(7), "deviation");
}

Test(statistics, nothing_gives_nan) {
    static const double none[] = {NAN, INFINITY}, one[] = {5};
    cr_expect(isnan(mean_of(none, 2)) && isnan(mean_of(none, 0)));
    cr_expect(isnan(median_of(none, 2)) && isnan(median_of(none, 0)));
    cr_expect(isnan(deviation_of(one, 1)));
}

Test(statistics, correlation) {
    static const double a[] = {1, 2, 3, 4}, up[] = {10, 20, 30, 40}, down[] = {3, 1, -1, -3};
    static const double some[] = {1, 3, 2, 4}, flat[] = {7, 7, 7, 7};
    expect_near(correlation_of(a, up, 4), 1, "a line up");
    expect_near(correlation_of(a, down, 4), -1, "a line down");
    expect_near(correlation_of(a, some, 4), 0.8, "two exchanged");
    cr_expect(isnan(correlation_of(a, flat, 4)), "one does not vary");
    cr_expect(isnan(correlation_of(a, up, 2)), "too few");
}

Test(statistics, correlation_uses_whole_pairs_only) {
    static const double a[] = {1, NAN, 2, 50, 3, 4}, b[] = {1, 90, 3, INFINITY, 2, 4};
    expect_near(correlation_of(a, b, 6), 0.8, "pairs that are finite");
}

Test(statistics, smooth_by_the_window) {
    static const double values[] = {1, 2, 3, 10, 5, 6};
    double odd[6], even[6], one[6];
    smooth(odd, values, 6, 3);
    smooth(even, values, 6, 4);
    smooth(one, values, 6, 1);
    static const double expected_odd[] = {NAN, 2, 5, 6, 7, NAN};
    static const double expected_even[] = {NAN, NAN, 4, 5, 6, NAN};
    for (int i = 0; i < 6; i++) {
        expect_near(one[i], values[i], "window 1");
        cr_expect_eq(isnan(odd[i]), isnan(expected_odd[i]), "odd, %d", i);
        cr_expect_eq(isnan(even[i]), isnan(expected_even[i]), "even, %d", i);
        if (!isnan(expected_odd[i])) expect_near(odd[i], expected_odd[i], "odd");
        if (!isnan(expected_even[i])) expect_near(even[i], expected_even[i], "even");
    }
}

Test(statistics, smooth_over_gaps) {
    static const double values[] = {1, NAN, 3, NAN, NAN, 6};
    double out[6];
    smooth(out, values, 6, 3);
    expect_near(out[1], 2, "two of three");
    cr_expect(isnan(out[2]), "one of three is not half: %g", out[2]);
    smooth(out, values, 6, 4);
    expect_near(out[2], 2, "two of four");
    smooth(out, values, 6, 7);
    for (int i = 0; i < 6; i++) cr_expect(isnan(out[i]), "a window that fits nowhere");
}

/* The contract of smooth, followed literally. */
static double smooth_at(const double *values, int count, int window, int i) {
    int from = i - window / 2, finite = 0;
    if (from < 0 || from + window > count) return NAN;
    for (int k = 0; k < window; k++) finite += isfinite(values[from + k]) != 0;
    return 2 * finite >= window ? mean_of(values + from, window) : NAN;
}

/* With gaps, and with outliers whose rounding errors must vanish once they leave the window. */
Test(statistics, smooth_is_the_plain_mean) {
    enum { MOST = 700 };
    double values[MOST], out[MOST];
    for (int i = 0; i < MOST; i++) {
        double noise = (double)(random_bits(3, 0, (uint64_t)i) >> 11) / (double)(1ULL << 53);
        values[i] = 2 + noise + (noise < 0.01 ? 1e12 : 0);
        if (noise > 0.6 && i % 200 > 90) values[i] = i % 3 ? NAN : INFINITY;
    }
    for (int window = 1; window < 120; window += window < 12 ? 1 : 7)
        for (int count = MOST; count > MOST - 30; count -= 7) {
            smooth(out, values, count, window);
            for (int i = 0; i < count; i++) {
                double plain = smooth_at(values, count, window, i);
                cr_assert(
                    isnan(plain) ? isnan(out[i]) : fabs(out[i] - plain) <= 1e-12 * fabs(plain),
                    "window %d of %d, at %d: %.17g, plain %.17g", window, count, i, out[i], plain);
            }
        }
}

static void smooth_many(const void *values, size_t count) {
    double *out = malloc(count * sizeof *out);
    cr_assert_not_null(out);
    smooth(out, values, (int)count, (int)count / 20);
    free(out);
}

/* 200,000 steps with a typical window: 2e9 additions if each window were summed again. */
Test(statistics, smooth_takes_linear_time) {
    enum { MANY = 200000 };
    double *values = malloc(MANY * sizeof *values);
    cr_assert_not_null(values);
    for (int i = 0; i < MANY; i++) values[i] = i % 7;
    cr_expect(grows_in_proportion(smooth_many, values, MANY));
    double begin = cpu_seconds();
    smooth_many(values, MANY);
    cr_expect_lt(cpu_seconds() - begin, 0.5);
    free(values);
}

/* Against a table of Student's distribution. */
Test(statistics, student) {
    expect_near(student_95(1), 12.706, "1");
    expect_near(student_95(2), 4.303, "2");
    expect_near(student_95(15), 2.131, "15");
    cr_expect(fabs(student_95(16) - 2.1199) < 0.001 && fabs(student_95(30) - 2.0423) < 0.001);
    cr_expect(fabs(student_95(100) - 1.9840) < 0.001 && fabs(student_95(100000) - 1.96) < 0.001);
    for (int i = 1; i < 40; i++) cr_expect_gt(student_95(i), student_95(i + 1));
}

Test(statistics, the_noise_of_one_pair_is_unknown) {
    static const double percent[] = {0.7}, reference[] = {2};
    struct difference d = difference_of(percent, reference, 1);
    expect_near(d.mean, 0.7, "mean");
    cr_expect(isnan(d.scatter) && isnan(d.noise) && isnan(d.margin) && !d.real);
}

Test(statistics, consistent_is_real) {
    static const double percent[] = {0.9, 1.0, 1.1}, reference[] = {2, 3, 4};
    struct difference d = difference_of(percent, reference, 3);
    expect_near(d.scatter, 0.1, "scatter");
    expect_near(d.noise, 100.0 / 3, "noise");
    expect_near(d.margin, 4.303 * 0.1 / sqrt(3), "margin");
    cr_expect(d.real, "1 %% in each pair");
}

Test(statistics, scattered_around_nothing_is_noise) {
    static const double percent[] = {0.9, -1.0, 0.4}, reference[] = {2, 2.1, 1.9};
    struct difference d = difference_of(percent, reference, 3);
    cr_expect_not(d.real, "%g within %g", d.mean, d.margin);
}

/* One of three runs diverged: the scatter is large, but the difference is not noise. */
Test(statistics, one_outlier_is_real) {
    static const double percent[] = {0.1, 0.0, 9.0}, reference[] = {2, 2.01, 1.99};
    struct difference d = difference_of(percent, reference, 3);
    expect_near(d.noise, 0.5, "noise");
    expect_near(d.margin, 2 * 0.5 * sqrt(2.0 / 3), "margin");
    cr_expect_gt(student_95(2) * d.scatter / sqrt(3), d.mean,
                 "the first margin alone would miss it");
    cr_expect(d.real);
}

Test(statistics, a_pair_that_is_not_finite_gives_nan) {
    static const double percent[] = {0.1, NAN, 0.2}, reference[] = {2, 2, 2};
    struct difference d = difference_of(percent, reference, 3);
    cr_expect(isnan(d.mean) && isnan(d.margin) && !d.real);
}

Test(statistics, no_difference_at_all) {
    static const double percent[] = {0, 0, 0}, reference[] = {2, 3, 4};
    struct difference d = difference_of(percent, reference, 3);
    cr_expect(d.mean == 0 && d.margin == 0 && !d.real);
}
