/* Axes: round ticks, what they say, and that any values get an axis. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/base/random.h"
#include "model/lab/page/chart_axis.h"

static struct axis axis;

/* The ticks in a row: "0 5 10", and 2^16 for a 16 that is raised. */
static const char *ticks(void) {
    static char text[1000];
    size_t size = 0;
    for (int i = 0; i < axis.tick_count; i++)
        size += (size_t)snprintf(text + size, sizeof text - size, "%s%s%s%s", i ? " " : "",
                                 axis.ticks[i].label, axis.ticks[i].power[0] ? "^" : "",
                                 axis.ticks[i].power);
    return text;
}

static const char *loose(enum axis_kind kind, double from, double to) {
    axis_make(&axis, kind, from, to, false, false);
    return ticks();
}

static const char *snug(double from, double to, bool whole) {
    axis_make(&axis, AXIS_LINEAR, from, to, true, whole);
    cr_expect_eq(axis.from, from);
    cr_expect_eq(axis.to, to);
    return ticks();
}

Test(chart_axis, linear) {
    cr_expect_str_eq(loose(AXIS_LINEAR, 1.6, 9.7), "0 2 4 6 8 10");
    cr_expect_eq(axis.from, 0);
    cr_expect_eq(axis.to, 10);
    cr_expect_str_eq(loose(AXIS_LINEAR, 0, 1), "0 0.2 0.4 0.6 0.8 1.0");
    cr_expect_str_eq(loose(AXIS_LINEAR, 1.61, 1.64), "1.610 1.615 1.620 1.625 1.630 1.635 1.640");
    cr_expect_str_eq(loose(AXIS_LINEAR, -0.3, 0.52), "\u22120.4 \u22120.2 0 0.2 0.4 0.6");
    cr_expect_str_eq(loose(AXIS_LINEAR, 0, 100), "0 20 40 60 80 100");
}

Test(chart_axis, the_ends_of_a_snug_axis_need_no_ticks) {
    cr_expect_str_eq(snug(-40.5, 16.5, true), "\u221240 \u221230 \u221220 \u221210 0 10");
    cr_expect_str_eq(snug(1, 5000, true), "1000 2000 3000 4000 5000");
    cr_expect_str_eq(snug(1, 3, true), "1 2 3");
    cr_expect_str_eq(snug(1, 3, false), "1.0 1.5 2.0 2.5 3.0");
}

Test(chart_axis, large_and_small_numbers_are_short) {
    cr_expect_str_eq(loose(AXIS_LINEAR, 0, 9000), "0 2000 4000 6000 8000 10000");
    cr_expect_str_eq(loose(AXIS_LINEAR, 0, 50000), "0 10k 20k 30k 40k 50k");
    cr_expect_str_eq(loose(AXIS_LINEAR, 0, 3e7), "0 5M 10M 15M 20M 25M 30M");
    cr_expect_str_eq(loose(AXIS_LINEAR, 100000, 100050),
                     "100000 100010 100020 100030 100040 100050");
    cr_expect_str_eq(loose(AXIS_LINEAR, 0, 3e-4),
                     "0 0.5·10^\u22124 1.0·10^\u22124 1.5·10^\u22124 2.0·10^\u22124 "
                     "2.5·10^\u22124 3.0·10^\u22124");
    cr_expect_str_eq(loose(AXIS_LINEAR, -2e30, 5e30), "\u22122·10^30 0 2·10^30 4·10^30 6·10^30");
}

Test(chart_axis, one_value_is_in_the_middle) {
    const double values[] = {7, -3, 0, 1e30, 1e-20, 1e-320, -1e308, 1.5e308};
    for (int i = 0; i < 8; i++) {
        loose(AXIS_LINEAR, values[i], values[i]);
        double place = axis_place(&axis, values[i]);
        cr_expect(place > 0.3 && place < 0.7, "%g is at %g", values[i], place);
        cr_expect_geq(axis.tick_count, 2);
        if (values[i] <= 0) continue;
        for (enum axis_kind kind = AXIS_DECADES; kind <= AXIS_POWERS_OF_TWO; kind++) {
            loose(kind, values[i], values[i]);
            place = axis_place(&axis, values[i]);
            cr_expect(place > 0.2 && place < 0.8, "%g is at %g", values[i], place);
            cr_expect_geq(axis.tick_count, 2);
        }
    }
}

Test(chart_axis, decades) {
    cr_expect_str_eq(loose(AXIS_DECADES, 0.4, 4.2), "0.2 0.5 1 2 5");
    cr_expect_str_eq(loose(AXIS_DECADES, 1, 100), "1 2 5 10 20 50 100");
    cr_expect_str_eq(loose(AXIS_DECADES, 0.7, 15), "0.5 1 2 5 10 20");
    cr_expect_str_eq(loose(AXIS_DECADES, 0.03, 1800), "0.01 0.1 1 10 100 1000 10000");
    cr_expect_str_eq(loose(AXIS_DECADES, 2e-7, 0.5),
                     "10^\u22128 10^\u22126 10^\u22124 10^\u22122 10^0");
    cr_expect_str_eq(loose(AXIS_DECADES, 1e-30, 1e30),
                     "10^\u221230 10^\u221220 10^\u221210 10^0 10^10 10^20 10^30");
    cr_expect_float_eq(axis_place(&axis, 1), 0.5, 1e-12);
}

Test(chart_axis, less_than_a_decade_has_linear_ticks) {
    cr_expect_str_eq(loose(AXIS_DECADES, 2.1, 3.9), "2.0 2.5 3.0 3.5 4.0");
    cr_expect_str_eq(loose(AXIS_DECADES, 0.9, 4.4), "1 2 3 4 5");
    cr_expect_eq(axis.from, 0.9, "0 has no place on it");
}

Test(chart_axis, powers_of_two) {
    cr_expect_str_eq(loose(AXIS_POWERS_OF_TWO, 4096, 65536), "2^12 2^13 2^14 2^15 2^16");
    cr_expect_str_eq(loose(AXIS_POWERS_OF_TWO, 1, 65536), "2^0 2^4 2^8 2^12 2^16");
    cr_expect_str_eq(loose(AXIS_POWERS_OF_TWO, 2, 131072), "2^0 2^4 2^8 2^12 2^16 2^20");
    cr_expect_str_eq(loose(AXIS_POWERS_OF_TWO, 1024, 1024), "2^9 2^10 2^11");
    cr_expect_str_eq(loose(AXIS_POWERS_OF_TWO, 0.2, 3),
                     "2^\u22123 2^\u22122 2^\u22121 2^0 2^1 2^2");
    cr_expect_eq(axis.from, 0.125);
    cr_expect_float_eq(axis_place(&axis, 1), 0.6, 1e-12);
}

/* Whatever the values: they are on it, ticks ascend, are neither few nor many, and differ. */
static void check_axis(enum axis_kind kind, double from, double to, bool is_snug) {
    axis_make(&axis, kind, from, to, is_snug, false);
    cr_assert(axis.from < axis.to, "%g %g", from, to);
    cr_expect(axis_place(&axis, from) > -1e-6 && axis_place(&axis, to) < 1 + 1e-6, "%g %g", from,
              to);
    cr_expect(axis.tick_count >= (is_snug ? 1 : 2) && axis.tick_count <= 12, "%d: %s (%g %g)",
              axis.tick_count, ticks(), from, to);
    for (int i = 0; i < axis.tick_count; i++) {
        double place = axis_place(&axis, axis.ticks[i].value);
        cr_expect(place > -1e-6 && place < 1 + 1e-6, "%s (%g %g)", ticks(), from, to);
        if (i == 0) continue;
        cr_expect_gt(axis.ticks[i].value, axis.ticks[i - 1].value);
        cr_expect(strcmp(axis.ticks[i].label, axis.ticks[i - 1].label) ||
                      strcmp(axis.ticks[i].power, axis.ticks[i - 1].power),
                  "%s (%g %g)", ticks(), from, to);
    }
}

static double any_size(uint64_t i) {
    double exponent = 600 * random_uniform(5, 0, i) - 300;
    return (random_uniform(5, 1, i) - 0.5) * pow(10, exponent);
}

Test(chart_axis, any_values) {
    for (uint64_t i = 0; i < 20000; i++) {
        double a = any_size(i), apart = pow(10, -12 * random_uniform(5, 3, i));
        double b = i % 2 ? a * (1 + apart) : any_size(i + 20000);
        check_axis(AXIS_LINEAR, fmin(a, b), fmax(a, b), i % 3 == 0);
        a = fabs(a), b = fabs(b);
        if (a == 0 || b == 0) continue;
        check_axis(AXIS_DECADES, fmin(a, b), fmax(a, b), false);
        check_axis(AXIS_POWERS_OF_TWO, fmin(a, b), fmax(a, b), false);
    }
}
