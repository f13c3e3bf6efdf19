#include "kernels/rounding.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "data/util/random.h"

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The nearest bf16 value, ties away from zero, in fp64 from the definition; the pattern of
 * infinity counts as the next power of two. */
static uint16_t nearest_away(uint32_t bits) {
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    double value = fabs((double)float_of(magnitude)), below, above;
    uint32_t cut = magnitude >> 16;
    if (magnitude == 0x7f800000) return (uint16_t)(sign | 0x7f80);
    below = (double)float_of(cut << 16);
    above = cut + 1 == 0x7f80 ? 0x1p128 : (double)float_of((cut + 1) << 16);
    return (uint16_t)(sign | (value - below < above - value ? cut : cut + 1));
}

static void check_bits(uint32_t bits) {
    float value = float_of(bits), joined;
    uint16_t upper, copy;
    int16_t remainder;
    split_masters(&upper, &remainder, &value, 1);
    join_masters(&joined, &upper, &remainder, 1);
    copy_masters(&copy, DTYPE_BF16, 0, &value, 1);
    cr_assert_eq(upper, copy, "%08x: the upper half is %04x, the copy %04x", bits, upper, copy);
    if (isnan(value)) {
        cr_assert(isnan(joined) && isnan(f32_from_bf16(upper)), "%08x: no NaN any more", bits);
        return;
    }
    cr_assert_eq(bits_of(joined), bits, "%08x comes back as %08x", bits, bits_of(joined));
    cr_assert_eq(upper, nearest_away(bits), "%08x is rounded to %04x", bits, upper);
}

/* Each upper half with values around ties and ends, and some in between. make test-split tests
 * all 2^32. */
Test(rounding, split_masters_come_back) {
    static const uint32_t lows[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    for (uint32_t upper = 0; upper < 0x10000; upper++) {
        for (int i = 0; i < 8; i++) check_bits(upper << 16 | lows[i]);
        for (uint64_t i = 0; i < 4; i++)
            check_bits(upper << 16 | (uint32_t)(random_bits(1, i, upper) & 0xffff));
    }
}

Test(rounding, copies_in_fp16_are_rounded_to_even) {
    float values[1000];
    uint16_t copies[1000];
    for (uint64_t i = 0; i < 1000; i++) values[i] = (float)random_normal(1, 0, i);
    values[0] = 1 + 0x1p-11f; /* a tie */
    copy_masters(copies, DTYPE_F16, 0, values, 1000);
    for (int i = 0; i < 1000; i++) cr_assert_eq(copies[i], f16_from_f32(values[i]));
}

/* Out of 2^16 draws, a value is rounded up exactly as often as its discarded fraction says. */
Test(rounding, stochastic_rounding_goes_up_as_often_as_it_should) {
    static const uint32_t values[] = {0x3f800000, 0x3f800001, 0x3f808000, 0x3f80ffff,
                                      0xbf807fff, 0x00000001, 0x80018000, 0x7f7effff};
    for (int i = 0; i < 8; i++) {
        uint32_t cut = values[i] >> 16, up = 0;
        for (uint32_t random = 0; random < 0x10000; random++) {
            uint32_t rounded = bf16_stochastic(values[i], random);
            cr_assert(rounded == cut || rounded == cut + 1);
            up += rounded != cut;
        }
        cr_assert_eq(up, values[i] & 0xffff, "%08x", values[i]);
    }
}

Test(rounding, stochastic_rounding_makes_no_infinity) {
    for (uint32_t random = 0; random < 0x10000; random++) {
        cr_assert_eq(bf16_stochastic(0x7f7fffff, random), 0x7f7f);
        cr_assert_eq(bf16_stochastic(0x7f800000, random), 0x7f80);
        cr_assert_eq(bf16_stochastic(0xff800000, random), 0xff80);
        cr_assert_gt(bf16_stochastic(0x7fc00000, random) & 0x7fff, 0x7f80);
        cr_assert_gt(bf16_stochastic(0x7fffffff, random) & 0x7fff, 0x7f80);
    }
}

/* Each of the 32 bits is set half of the time. Neighbors in index, step and half of the draw are
 * independent: within five standard errors of fair coins. */
Test(rounding, random_bits_are_unbiased) {
    enum { DRAWS = 1 << 16 };
    int64_t set[32] = {0}, same_index[32] = {0}, same_step[32] = {0}, same_half[16] = {0};
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint64_t a = random_bits(1, 2, 3), b = random_bits(1, 2, 4);
        struct rounding_key key = {(uint32_t)a, (uint32_t)(a >> 32)};
        struct rounding_key next = {(uint32_t)b, (uint32_t)(b >> 32)};
        uint32_t x = rounding_bits(key, i), y = rounding_bits(key, i + 1);
        uint32_t z = rounding_bits(next, i);
        for (int bit = 0; bit < 32; bit++) {
            set[bit] += x >> bit & 1;
            same_index[bit] += ~(x ^ y) >> bit & 1;
            same_step[bit] += ~(x ^ z) >> bit & 1;
            if (bit < 16) same_half[bit] += ~(x ^ (x >> 16)) >> bit & 1;
        }
    }
    const double most = 5 * 0.5 * sqrt((double)DRAWS);
    for (int bit = 0; bit < 32; bit++) {
        cr_expect_lt(fabs((double)set[bit] - DRAWS / 2), most, "bit %d", bit);
        cr_expect_lt(fabs((double)same_index[bit] - DRAWS / 2), most, "bit %d, index", bit);
        cr_expect_lt(fabs((double)same_step[bit] - DRAWS / 2), most, "bit %d, step", bit);
        if (bit < 16)
            cr_expect_lt(fabs((double)same_half[bit] - DRAWS / 2), most, "bit %d, half", bit);
    }
}

/* A moving average of constant small steps, which would never grow with rounding to nearest. */
Test(rounding, small_additions_are_not_lost) {
    enum { STEPS = 2000, ELEMENTS = 256 };
    double mean = 0;
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        float average = 1;
        for (int step = 0; step < STEPS; step++) {
            uint64_t bits = random_bits(7, 0, (uint64_t)step);
            struct rounding_key key = {(uint32_t)bits, (uint32_t)(bits >> 32)};
            float exact = average + 0.001f * (2 - average); /* ulp of bf16 there: 0.0078 */
            average = f32_from_bf16(
                (uint16_t)bf16_stochastic(bits_of(exact), rounding_bits(key, i) & 0xffff));
        }
        mean += (double)average / ELEMENTS;
    }
    /* 2 - 0.999^2000 = 1.865; the noise of one average is about 0.06, so 0.004 of their mean. */
    cr_assert_lt(fabs(mean - 1.8648), 0.02, "%g", mean);
}
