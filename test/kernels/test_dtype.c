#include "kernels/dtype.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { PATTERNS = 1 << 16 };

/* A 16-bit format by its definition: sign, exponent, fraction. Everything here is computed in
 * double from these three numbers, independently of the code under test. */
struct format {
    const char *name;
    enum dtype dtype;
    int fraction_bits, bias;
    float (*widen)(uint16_t bits);
    uint16_t (*narrow)(float value);
};

static const struct format formats[] = {
    {"fp16", DTYPE_F16, 10, 15, f32_from_f16, f16_from_f32},
    {"bf16", DTYPE_BF16, 7, 127, f32_from_bf16, bf16_from_f32},
};
#define EACH_FORMAT(f) (const struct format *f = formats; f < formats + 2; f++)

/* The pattern of infinity, taken as a finite value, is the next power of two: rounding decides
 * as if there were no largest value. */
static double magnitude_of(const struct format *f, uint16_t bits) {
    int exponent = (bits & 0x7fff) >> f->fraction_bits,
        fraction = bits & ((1 << f->fraction_bits) - 1);
    if (exponent == 0) return ldexp(fraction, 1 - f->bias - f->fraction_bits);
    return ldexp(fraction + (1 << f->fraction_bits), exponent - f->bias - f->fraction_bits);
}

static uint16_t infinity_of(const struct format *f) {
    return (uint16_t)((2 * f->bias + 1) << f->fraction_bits);
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

Test(dtype, sizes_and_names) {
    cr_assert_eq(dtype_bytes(DTYPE_F32), 4);
    cr_assert_eq(dtype_bytes(DTYPE_F16), 2);
    cr_assert_eq(dtype_bytes(DTYPE_BF16), 2);
    cr_assert_str_eq(dtype_name(DTYPE_F32), "fp32");
    cr_assert_str_eq(dtype_name(DTYPE_F16), "fp16");
    cr_assert_str_eq(dtype_name(DTYPE_BF16), "bf16");
}

Test(dtype, every_pattern_widens_exactly) {
    for
        EACH_FORMAT(f) {
            for (int bits = 0; bits < PATTERNS; bits++) {
                uint16_t magnitude = (uint16_t)(bits & 0x7fff);
                float wide = f->widen((uint16_t)bits);
                cr_assert_eq(signbit(wide) != 0, bits >= 0x8000, "%s %04x: sign", f->name, bits);
                if (magnitude > infinity_of(f))
                    cr_assert(isnan(wide), "%s %04x: not NaN", f->name, bits);
                else if (magnitude == infinity_of(f))
                    cr_assert(isinf(wide), "%s %04x: not infinite", f->name, bits);
                else
                    cr_assert_eq(fabs((double)wide), magnitude_of(f, magnitude), "%s %04x gives %a",
                                 f->name, bits, (double)wide);
            }
        }
}

Test(dtype, every_pattern_round_trips) {
    for
        EACH_FORMAT(f) {
            for (int bits = 0; bits < PATTERNS; bits++) {
                uint16_t back = f->narrow(f->widen((uint16_t)bits));
                bool quieted = (bits & 0x7fff) > infinity_of(f);
                uint16_t quiet = quieted ? (uint16_t)(1 << (f->fraction_bits - 1)) : 0;
                cr_assert_eq(back, bits | quiet, "%s %04x comes back as %04x", f->name, bits, back);
            }
        }
}

static void check_narrow(const struct format *f, float value, uint16_t expected) {
    uint16_t got = f->narrow(value), negative = f->narrow(-value);
    cr_assert_eq(got, expected, "%s: %a rounds to %04x, expected %04x", f->name, (double)value, got,
                 expected);
    cr_assert_eq(negative, expected | 0x8000, "%s: %a rounds to %04x", f->name, -(double)value,
                 negative);
}

/* Between each value and the next, up to where infinity begins: the midpoint rounds to the even
 * one of the two, its fp32 neighbors to the nearer one. This covers subnormals and overflow. */
Test(dtype, every_midpoint_rounds_to_even) {
    for
        EACH_FORMAT(f) {
            for (int bits = 0; bits < infinity_of(f); bits++) {
                uint16_t low = (uint16_t)bits, high = (uint16_t)(bits + 1);
                double exact = (magnitude_of(f, low) + magnitude_of(f, high)) / 2;
                float middle = (float)exact;
                cr_assert_eq((double)middle, exact);
                check_narrow(f, middle, bits % 2 ? high : low);
                check_narrow(f, nextafterf(middle, 0), low);
                check_narrow(f, nextafterf(middle, INFINITY), high);
            }
        }
}

Test(dtype, overflow_and_underflow_thresholds) {
    check_narrow(formats, 65504.0f, 0x7bff);
    check_narrow(formats, 65519.996f, 0x7bff);
    check_narrow(formats, 65520.0f, 0x7c00);
    check_narrow(formats, 0x1p-24f, 0x0001);
    check_narrow(formats, 0x1p-25f, 0x0000);
    check_narrow(formats, 0x1.000002p-25f, 0x0001);
    check_narrow(formats, 0x1p-149f, 0x0000);
    check_narrow(formats + 1, 0x1.fep127f, 0x7f7f);
    check_narrow(formats + 1, 0x1.fefffep127f, 0x7f7f);
    check_narrow(formats + 1, 0x1.ffp127f, 0x7f80);
    check_narrow(formats + 1, 0x1p-133f, 0x0001);
    check_narrow(formats + 1, 0x1p-134f, 0x0000);
    check_narrow(formats + 1, 0x1.8p-134f, 0x0001);
    for
        EACH_FORMAT(f) {
            check_narrow(f, INFINITY, infinity_of(f));
            check_narrow(f, 0x1.fffffep127f, infinity_of(f));
            check_narrow(f, 0.0f, 0);
        }
}

Test(dtype, nan_stays_nan) {
    static const uint32_t patterns[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0x7f801000,
                                        0xff800001, 0xffffffff, 0xffc00000, 0x7f808000};
    for
        EACH_FORMAT(f) {
            for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
                uint16_t bits = f->narrow(float_of(patterns[i]));
                cr_assert_gt(bits & 0x7fff, infinity_of(f), "%s of %08x is %04x", f->name,
                             patterns[i], bits);
                cr_assert(bits & 1 << (f->fraction_bits - 1), "%s of %08x is not quiet", f->name,
                          patterns[i]);
            }
        }
}

/* fp32 patterns with every exponent, every upper fraction, and every kind of tie. */
static uint32_t pattern(int index) {
    static const uint16_t lower[] = {0,      1,      0x7fff, 0x8000, 0x8001, 0xffff, 0x0fff,
                                     0x1000, 0x1001, 0x1fff, 0x3000, 0xf000, 0x5a5a};
    enum { LOWER = sizeof lower / sizeof *lower };
    return (uint32_t)(index / LOWER) << 16 | lower[index % LOWER];
}

/* Rows take another path (F16C if the processor has it), which must give the same bits. */
Test(dtype, rows_store_like_single_values) {
    enum { ROW = 1009, TOTAL = 13 * PATTERNS };
    float in[ROW];
    uint16_t out[ROW];
    for
        EACH_FORMAT(f) {
            for (int first = 0; first < TOTAL; first += ROW) {
                int count = TOTAL - first < ROW ? TOTAL - first : ROW;
                for (int i = 0; i < count; i++) in[i] = float_of(pattern(first + i));
                dtype_store(out, f->dtype, 0, in, (size_t)count);
                for (int i = 0; i < count; i++)
                    cr_assert_eq(out[i], f->narrow(in[i]), "%s of %08x: %04x in a row, %04x alone",
                                 f->name, bits_of(in[i]), out[i], f->narrow(in[i]));
            }
        }
}

Test(dtype, rows_widen_like_single_values) {
    static uint16_t in[PATTERNS];
    static float out[PATTERNS];
    for (int i = 0; i < PATTERNS; i++) in[i] = (uint16_t)i;
    for
        EACH_FORMAT(f) {
            cr_assert_eq(dtype_widen(out, in, f->dtype, 0, PATTERNS), out);
            for (int i = 0; i < PATTERNS; i++)
                cr_assert_eq(bits_of(out[i]), bits_of(f->widen(in[i])), "%s %04x: %08x in a row",
                             f->name, i, bits_of(out[i]));
        }
}

/* Every length around one or two vectors, at every offset: all elements are written, and nothing
 * else. */
Test(dtype, rows_of_any_length_and_offset) {
    enum { MAX = 37, ROOM = 64 };
    for
        EACH_FORMAT(f) {
            for (size_t offset = 0; offset < 9; offset++) {
                for (size_t count = 0; count <= MAX; count++) {
                    float values[MAX], wide[ROOM];
                    uint16_t stored[ROOM];
                    memset(stored, 0xa5, sizeof stored);
                    memset(wide, 0xa5, sizeof wide);
                    for (size_t i = 0; i < count; i++) values[i] = 1.1f * (float)(i + 1);
                    dtype_store(stored, f->dtype, offset, values, count);
                    const float *read = dtype_widen(wide, stored, f->dtype, offset, count);
                    for (size_t i = 0; i < ROOM; i++) {
                        bool inside = i >= offset && i < offset + count;
                        uint16_t expected = inside ? f->narrow(values[i - offset]) : 0xa5a5;
                        cr_assert_eq(stored[i], expected, "%s offset %zu count %zu at %zu", f->name,
                                     offset, count, i);
                        if (i < count) cr_assert_eq(read[i], f->widen(f->narrow(values[i])));
                        else cr_assert_eq(bits_of(wide[i]), 0xa5a5a5a5);
                    }
                }
            }
        }
}

Test(dtype, fp32_is_used_in_place) {
    float values[] = {1, 2, 3, 4, 5}, buffer[5];
    cr_assert_eq(dtype_widen(buffer, values, DTYPE_F32, 2, 3), values + 2);
    dtype_store(values, DTYPE_F32, 1, values, 4); /* the ranges overlap */
    for (int i = 1; i < 5; i++) cr_assert_eq(values[i], (float)i);
}

Test(dtype, sizes) {
    cr_expect_eq(dtype_size(DTYPE_BF16, 77), 154u);
    cr_expect_eq(dtype_bytes(DTYPE_F32), 4u);
    cr_expect_eq(dtype_bytes(DTYPE_F16), 2u);
    cr_expect_eq(dtype_bytes(DTYPE_BF16), 2u);
}
