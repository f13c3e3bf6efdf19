/* Fractions of counts, against arithmetic with whole numbers. */
#include "data/util/fraction.h"

#include <criterion/criterion.h>
#include <math.h>

#include "data/util/random.h"

static void expect_parts(int64_t numerator, int64_t denominator, int64_t count) {
    const double fraction = (double)numerator / (double)denominator;
    const __int128 product = (__int128)numerator * count;
    const int64_t down = (int64_t)(product / denominator);
    const int64_t rest = (int64_t)(product % denominator);
    cr_expect_eq(fraction_of(fraction, count, FRACTION_DOWN), down, "%.17g of %lld", fraction,
                 (long long)count);
    cr_expect_eq(fraction_of(fraction, count, FRACTION_UP), down + (rest > 0), "%.17g of %lld",
                 fraction, (long long)count);
    cr_expect_eq(fraction_of(fraction, count, FRACTION_NEAREST), down + (2 * rest >= denominator),
                 "%.17g of %lld", fraction, (long long)count);
}

/* All decimals with up to three digits, also above 1, which passes over data may have. */
Test(fraction, decimals_are_exact) {
    for (int64_t numerator = 0; numerator <= 2500; numerator++)
        for (int64_t count = 0; count <= 1000; count += count < 110 ? 1 : 89)
            expect_parts(numerator, 1000, count);
}

Test(fraction, long_decimals_and_large_counts) {
    for (uint64_t i = 0; i < 20000; i++) {
        int64_t denominator = 10;
        for (uint64_t zeros = random_bits(3, 0, i) % 12; zeros > 0; zeros--) denominator *= 10;
        const int64_t numerator = (int64_t)(random_bits(3, 1, i) % (uint64_t)(2 * denominator));
        expect_parts(numerator, denominator, (int64_t)(random_bits(3, 2, i) >> 3));
    }
}

Test(fraction, limits) {
    cr_expect_eq(fraction_of(1e6, INT64_MAX, FRACTION_DOWN), INT64_MAX);
    cr_expect_eq(fraction_of(1e300, 1, FRACTION_DOWN), INT64_MAX);
    cr_expect_eq(fraction_of(1e300, 0, FRACTION_UP), 0);
    cr_expect_eq(fraction_of(1e-300, 100, FRACTION_UP), 1);
    cr_expect_eq(fraction_of(1e-300, 100, FRACTION_NEAREST), 0);
    cr_expect_eq(fraction_of(5e-324, INT64_MAX, FRACTION_UP), 1);
    cr_expect_eq(fraction_of(1 / 3.0, 3, FRACTION_NEAREST), 1);
    cr_expect_eq(fraction_of(1, INT64_MAX, FRACTION_UP), INT64_MAX);
    cr_expect_eq(fraction_of(1e18, 9, FRACTION_UP), 9000000000000000000);
}
