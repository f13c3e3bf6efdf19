/* Fractions of counts, exact for the decimals that people write: 0.07 of 100 is 7, although the
 * double next to 0.07 times 100 is more. */
#pragma once

#include <stdint.h>

enum fraction_rounding { FRACTION_DOWN, FRACTION_NEAREST, FRACTION_UP };

/* Returns fraction * count rounded to a whole number; halves are rounded up. The fraction is the
 * shortest decimal that reads as the same double. fraction >= 0 and finite, count >= 0; the result
 * is at most INT64_MAX. */
int64_t fraction_of(double fraction, int64_t count, enum fraction_rounding rounding);
