/* The 8-bit formats compared with their definition: sign, exponent, fraction, in double. */
#include "kernels/dtype.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "data/util/random.h"

struct format {
    const char *name;
    enum dtype dtype;
    int fraction_bits, bias;
    uint8_t largest; /* largest finite code */
};

static const struct format formats[] = {
    {"e4m3", DTYPE_E4M3, 3, 7, 0x7e},
    {"e5m2", DTYPE_E5M2, 2, 15, 0x7b},
};
#define EACH_FORMAT(f) (const struct format *f = formats; f < formats + 2; f++)

static double magnitude_of(const struct format *f, int code) {
    int exponent = code >> f->fraction_bits, fraction = code & ((1 << f->fraction_bits) - 1);
    if (exponent == 0) return ldexp(fraction, 1 - f->bias - f->fraction_bits);
    return ldexp(fraction + (1 << f->fraction_bits), exponent - f->bias - f->fraction_bits);
}

/* Returns the nearest code of a magnitude, ties to even. */
static int nearest(const struct format *f, double magnitude) {
    int code = 0;
    while (code < f->largest && magnitude_of(f, code + 1) <= magnitude) code++;
    if (code == f->largest) return code;
    double below = magnitude - magnitude_of(f, code), above = magnitude_of(f, code + 1) - magnitude;
    return above < below || (above == below && code & 1) ? code + 1 : code;
}

static int expected_code(const struct format *f, float value) {
    int sign = signbit(value) ? 0x80 : 0;
    if (isnan(value)) return sign | 0x7f;
    if (isinf(value)) return sign | (f->dtype == DTYPE_E4M3 ? 0x7f : 0x7c);
    return sign | nearest(f, fabs((double)value));
}

static void expect_code(const struct format *f, float value) {
    int got = f8_from_f32(value, f->dtype), wanted = expected_code(f, value);
    cr_assert_eq(got, wanted, "%s of %a: 0x%02x, not 0x%02x", f->name, (double)value, got, wanted);
}

Test(float8, sizes_names_and_limits) {
    cr_expect_eq(dtype_bytes(DTYPE_E4M3), 1);
    cr_expect_eq(dtype_bytes(DTYPE_E5M2), 1);
    cr_expect_eq(dtype_size(DTYPE_E4M3, 77), 77);
    cr_expect_str_eq(dtype_name(DTYPE_E4M3), "e4m3");
    cr_expect_str_eq(dtype_name(DTYPE_E5M2), "e5m2");
    cr_expect_eq(dtype_f8_max(DTYPE_E4M3), 448);
    cr_expect_eq(dtype_f8_max(DTYPE_E5M2), 57344);
}

Test(float8, every_code_widens_exactly_and_back) {
    for
        EACH_FORMAT(f)
    for (int code = 0; code < 256; code++) {
        int magnitude = code & 0x7f;
        float got = f32_from_f8((uint8_t)code, f->dtype);
        cr_expect_eq(!!signbit(got), code >> 7, "%s 0x%02x", f->name, code);
        if (magnitude <= f->largest)
            cr_expect_eq(fabs((double)got), magnitude_of(f, magnitude), "%s 0x%02x", f->name, code);
        else if (f->dtype == DTYPE_E5M2 && magnitude == 0x7c) cr_expect(isinf(got));
        else cr_expect(isnan(got), "%s 0x%02x is %g", f->name, code, (double)got);
        int again = f8_from_f32(got, f->dtype);
        cr_expect_eq(again, isnan(got) ? code | 0x7f : code, "%s 0x%02x: 0x%02x", f->name, code,
                     again);
    }
}

Test(float8, every_bf16_value_is_rounded) {
    for
        EACH_FORMAT(f)
    for (int bits = 0; bits < 1 << 16; bits++) expect_code(f, f32_from_bf16((uint16_t)bits));
}

/* Values between two codes, and on both sides of the limits. */
Test(float8, halves_and_their_neighbors) {
    for
        EACH_FORMAT(f)
    for (int code = 0; code <= f->largest; code++) {
        double above = code == f->largest ? 2 * magnitude_of(f, code) : magnitude_of(f, code + 1);
        float half = (float)((magnitude_of(f, code) + above) / 2);
        const float values[] = {half, nextafterf(half, 0), nextafterf(half, INFINITY)};
        for (int i = 0; i < 3; i++) {
            expect_code(f, values[i]);
            expect_code(f, -values[i]);
        }
    }
}

Test(float8, random_floats) {
    for
        EACH_FORMAT(f)
    for (uint64_t i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)random_bits(3, f->dtype, i);
        if (i & 1) bits = (bits & 0x80ffffff) | (100 + bits % 50) << 24 >> 1; /* near the range */
        float value;
        memcpy(&value, &bits, sizeof value);
        expect_code(f, value);
    }
}

/* Arrays use separate loops. */
Test(float8, arrays) {
    enum { COUNT = 333 };
    uint8_t codes[COUNT + 2], got[COUNT + 2];
    float wide[COUNT];
    for
        EACH_FORMAT(f) {
            for (int i = 0; i < COUNT + 2; i++) codes[i] = (uint8_t)(i * 7 % 0x7b | (i & 1) << 7);
            memcpy(got, codes, sizeof got);
            cr_assert_eq(dtype_widen(wide, codes, f->dtype, 1, COUNT), wide);
            for (int i = 0; i < COUNT; i++)
                cr_expect_eq(wide[i], f32_from_f8(codes[i + 1], f->dtype));
            memset(got + 1, 0, COUNT);
            dtype_store(got, f->dtype, 1, wide, COUNT);
            cr_expect_arr_eq(got, codes, sizeof got);
        }
}
