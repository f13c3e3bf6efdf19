#include "kernels/cpu/vector.h"

#include <criterion/criterion.h>
#include <math.h>

/* Every 1021st fp32 pattern: 4 million values, all exponents, no regular fractions. */
enum { STRIDE = 1021 };

/* Largest errors in units of the last place, found over every third fp32 pattern: 1.06 and 2.52,
 * with and without fused multiply-add. */
static const double EXP_ULPS = 1.1, TANH_ULPS = 2.6;

/* The error of value in units of the last place of the exact result, subnormals included. */
static double ulps(float value, double exact) {
    int exponent = exact == 0 ? -126 : ilogb(exact);
    if (exponent < -126) exponent = -126;
    return fabs(value - exact) / ldexp(1, exponent - 23);
}

Test(vector, exp_of_all_exponents) {
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += STRIDE) {
        float x = f32_of_bits((uint32_t)bits), got = exp_f32(x);
        if (isnan(x)) {
            cr_assert(isnan(got));
            continue;
        }
        double exact = exp(x);
        if (exact >= 0x1.ffffffp127) cr_assert(isinf(got) || got > 0x1.fffffcp127f, "%a", x);
        else cr_assert_leq(ulps(got, exact), EXP_ULPS, "exp(%a) = %a", (double)x, (double)got);
    }
}

Test(vector, tanh_of_all_exponents) {
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += STRIDE) {
        float x = f32_of_bits((uint32_t)bits), got = tanh_f32(x);
        if (isnan(x)) cr_assert(isnan(got));
        else cr_assert_leq(ulps(got, tanh(x)), TANH_ULPS, "tanh(%a) = %a", (double)x, (double)got);
    }
}

/* Dense sampling where inputs of softmax and GELU are common. */
Test(vector, usual_arguments) {
    for (int i = -1600000; i < 1600000; i++) {
        float x = (float)i * 1e-5f;
        cr_assert_leq(ulps(exp_f32(x), exp(x)), EXP_ULPS, "exp(%a)", (double)x);
        cr_assert_leq(ulps(tanh_f32(x), tanh(x)), TANH_ULPS, "tanh(%a)", (double)x);
    }
}

Test(vector, special_values) {
    cr_assert_eq(exp_f32(-INFINITY), 0);
    cr_assert_eq(exp_f32(-1000), 0);
    cr_assert(isinf(exp_f32(INFINITY)) && isinf(exp_f32(1000)));
    cr_assert_eq(exp_f32(0), 1);
    cr_assert_eq(exp_f32(-0.0f), 1);
    cr_assert_eq(tanh_f32(INFINITY), 1);
    cr_assert_eq(tanh_f32(-INFINITY), -1);
    cr_assert_eq(f32_bits(tanh_f32(0)), 0);
    cr_assert_eq(f32_bits(tanh_f32(-0.0f)), 0x80000000);
}
