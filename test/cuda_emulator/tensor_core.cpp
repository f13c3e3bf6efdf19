#include "test/cuda_emulator/tensor_core.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace emu {

struct form {
    size_t terms;        /* products in a block */
    int fraction;        /* bits kept below the largest exponent */
    int result_fraction; /* bits kept below the exponent of the result */
    int least;           /* the largest exponent is at least this */
};
static const form eight_bit = {32, 13, 13, -132}, half = {16, 25, 23, -133},
                  tf32 = {8, 25, 23, -133};

static const struct {
    const form *sum;
    int least; /* exponent of the least normal value, and of subnormal ones */
} formats[] = {
    {&eight_bit, -6}, {&eight_bit, -14}, {&half, -14}, {&half, -126}, {&tf32, -126},
};

static const size_t LANES = 64; /* outputs of a vectorized loop */
enum { ZERO = -100000, LEAST_FLOAT = -126, FLOAT_BIAS = 127, DOUBLE_BIAS = 1023 };

bool tensor_cores_truncate() {
    static const char *const asked = getenv("CUDA_EMULATOR_TENSOR_CORES");
    return asked && !strcmp(asked, "truncate");
}

static int exponent_of(float x, int least) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 23 & 0xff) - FLOAT_BIAS;
    return (bits & 0x7fffffff) == 0 ? ZERO : exponent > least ? exponent : least;
}

static double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(DOUBLE_BIAS + exponent) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Drops the bits of x beyond `fraction` below its exponent, or below that of the least normal
 * fp32. */
static inline float truncated(double x, int fraction) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - DOUBLE_BIAS;
    int dropped = 52 - fraction + (exponent < LEAST_FLOAT ? LEAST_FLOAT - exponent : 0);
    bits = dropped > 52 ? 0 : bits >> dropped << dropped;
    memcpy(&x, &bits, sizeof x);
    return (float)x + 0.0f; /* never -0 */
}

/* The sums of one block; loops over lanes become vectors. */
struct block {
    double total[LANES]; /* in units of the last bit kept */
    double scale[LANES];
    double plain[LANES]; /* finite exactly if no term is infinite or NaN */
    int top[LANES];
};

/* Adds the whole units of x. 30 bits hold more than any finite term has. */
static inline void add_units(block &s, size_t i, double x) {
    double units = x * s.scale[i];
    s.plain[i] += x;
    s.total[i] += (double)(int32_t)(fabs(units) < 0x1p30 ? units : 0);
}

static __attribute__((optimize("O3"), no_sanitize("address", "undefined"))) void
add_block(float *sums, size_t count, const float *a, size_t a_stride, int a_least, const float *b,
          int b_least, size_t terms, const form &f) {
    block s;
    for (size_t i = 0; i < count; i++) {
        int exponent = exponent_of(sums[i], LEAST_FLOAT);
        s.top[i] = exponent > f.least ? exponent : f.least;
    }
    for (size_t k = 0; k < terms; k++) {
        int other = exponent_of(b[k], b_least);
        for (size_t i = 0; i < count; i++) {
            int exponent = exponent_of(a[k * a_stride + i], a_least) + other;
            s.top[i] = exponent > s.top[i] ? exponent : s.top[i];
        }
    }
    for (size_t i = 0; i < count; i++) {
        s.scale[i] = power_of_two(f.fraction - s.top[i]);
        s.plain[i] = s.total[i] = 0;
        add_units(s, i, (double)sums[i]);
    }
    for (size_t k = 0; k < terms; k++)
        for (size_t i = 0; i < count; i++)
            add_units(s, i, (double)a[k * a_stride + i] * (double)b[k]);
    for (size_t i = 0; i < count; i++)
        sums[i] = isfinite(s.plain[i]) ? truncated(s.total[i] / s.scale[i], f.result_fraction)
                                       : (float)s.plain[i];
}

void tensor_core_add(float *sums, size_t count, const float *a, size_t a_stride,
                     tensor_core_format a_format, const float *b, tensor_core_format b_format,
                     size_t terms) {
    const form &f = *formats[a_format].sum;
    for (size_t lane = 0; lane < count; lane += LANES)
        for (size_t first = 0; first < terms; first += f.terms) {
            size_t some = terms - first < f.terms ? terms - first : f.terms;
            add_block(sums + lane, count - lane < LANES ? count - lane : LANES,
                      a + first * a_stride + lane, a_stride, formats[a_format].least, b + first,
                      formats[b_format].least, some, f);
        }
}

float tanh_approx(float x) {
    return truncated((double)tanhf(x), 11);
}

} // namespace emu
