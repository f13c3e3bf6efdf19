#include "data/util/fraction.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    DIGITS_MAX = 17, /* enough for any double */
    POWER_MAX = 37,  /* largest power of ten below 2^127 */
    DECIMAL_BYTES = 32,
};

/* Splits a fraction into digits * 10^exponent, its shortest decimal form. */
static void split_decimal(double fraction, int64_t *digits, int *exponent) {
    char text[DECIMAL_BYTES];
    int count = 1;
    snprintf(text, sizeof text, "%.0e", fraction);
    while (count < DIGITS_MAX && strtod(text, NULL) != fraction)
        snprintf(text, sizeof text, "%.*e", count++, fraction);
    char *at = text;
    for (*digits = 0; *at != 'e'; at++)
        if (*at != '.') *digits = *digits * 10 + (*at - '0');
    *exponent = atoi(at + 1) - (count - 1);
}

int64_t fraction_of(double fraction, int64_t count, enum fraction_rounding rounding) {
    int64_t digits;
    int exponent;
    assert(fraction >= 0 && isfinite(fraction) && count >= 0);
    split_decimal(fraction, &digits, &exponent);
    __int128 product = (__int128)digits * count, power = 1; /* below 10^36 */
    for (; exponent > 0 && product <= INT64_MAX; exponent--) product *= 10;
    if (exponent >= 0) return product < INT64_MAX ? (int64_t)product : INT64_MAX;
    if (exponent < -POWER_MAX) return rounding == FRACTION_UP && product > 0;
    for (; exponent < 0; exponent++) power *= 10;
    __int128 whole = product / power, rest = product % power;
    if (rounding == FRACTION_NEAREST) whole += rest >= power - rest;
    else if (rounding == FRACTION_UP) whole += rest > 0;
    return whole < INT64_MAX ? (int64_t)whole : INT64_MAX;
}
