#include "data/util/random.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", 2014; constants of Stafford's variant 13). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The odd constant nearest 2^64 / golden ratio keeps neighbouring counters far apart. */
static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

/* Returns the key of a stream; the bits of counter c are mix(key + (c + 1) * GOLDEN). */
static uint64_t key_of(uint64_t seed, uint64_t stream) {
    return mix(mix(seed + GOLDEN) ^ (stream * GOLDEN + 1));
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
    return mix(key_of(seed, stream) + (counter + 1) * GOLDEN);
}

double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    return (double)(random_bits(seed, stream, counter) >> 11) * 0x1p-53;
}

/* ---- normal numbers. Plain multiplications and additions, never fused (the Makefile disables
 * that), without branches or integer conversions, for which old CPUs have no vector
 * instructions. */

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
/* Returns a value in [1, 2) from the upper 52 bits. */
static double in_one_to_two(uint64_t bits) {
    return double_of(UINT64_C(0x3ff0000000000000) | bits >> 12);
}

/* Returns the logarithm of x in (0, 1], within 4e-14: x = 2^e m with m in [1 / sqrt(2), sqrt(2)),
 * and log(m) = 2 artanh(s) with s = (m - 1) / (m + 1), |s| < 0.172, by its series up to s^15. */
static double own_log(double x) {
    const uint64_t root_of_half = UINT64_C(0x3fe6a09e667f3bcd);
    uint64_t bits = bits_of(x), e = (bits - root_of_half) >> 52; /* 12 bits, usually negative */
    double exponent = double_of(UINT64_C(0x4330000000000000) | ((e + 2048) & 4095));
    double m = double_of(bits - (e << 52)), s = (m - 1) / (m + 1), z = s * s, sum = 1.0 / 15;
    sum = sum * z + 1.0 / 13;
    sum = sum * z + 1.0 / 11;
    sum = sum * z + 1.0 / 9;
    sum = sum * z + 1.0 / 7;
    sum = sum * z + 1.0 / 5;
    sum = sum * z + 1.0 / 3;
    return (exponent - (0x1p52 + 2048)) * 0.69314718055994531 + (2 * s + 2 * s * (z * sum));
}

/* Sine and cosine by their Taylor series up to t^15 and t^14, for |t| <= pi / 4, within 1e-15. */
static double own_sine(double t) {
    double q = t * t, sum = -1.0 / 1307674368000;
    sum = sum * q + 1.0 / 6227020800;
    sum = sum * q - 1.0 / 39916800;
    sum = sum * q + 1.0 / 362880;
    sum = sum * q - 1.0 / 5040;
    sum = sum * q + 1.0 / 120;
    sum = sum * q - 1.0 / 6;
    return t + t * (q * sum);
}
static double own_cosine(double t) {
    double q = t * t, sum = -1.0 / 87178291200;
    sum = sum * q + 1.0 / 479001600;
    sum = sum * q - 1.0 / 3628800;
    sum = sum * q + 1.0 / 40320;
    sum = sum * q - 1.0 / 720;
    sum = sum * q + 1.0 / 24;
    sum = sum * q - 1.0 / 2;
    return 1 + q * sum;
}

/* Computes two standard normal values from two times 64 random bits. */
static inline void normal_pair(double *even, double *odd, uint64_t first, uint64_t second) {
    double radius = sqrt(-2 * own_log(2 - in_one_to_two(first)));
    uint64_t angle = second + (UINT64_C(1) << 61), quadrant = angle >> 62;
    double t = (in_one_to_two(angle << 2) - 1.5) * 1.5707963267948966;
    uint64_t cosine = bits_of(own_cosine(t)), sine = bits_of(own_sine(t));
    uint64_t swapped = (cosine ^ sine) & (0 - (quadrant & 1));
    *even = radius * double_of(cosine ^ swapped ^ ((quadrant + 1) & 2) << 62);
    *odd = radius * double_of(sine ^ swapped ^ (quadrant & 2) << 62);
}

double random_normal(uint64_t seed, uint64_t stream, uint64_t counter) {
    double even, odd;
    uint64_t first = counter & ~UINT64_C(1);
    normal_pair(&even, &odd, random_bits(seed, stream, first),
                random_bits(seed, stream, first + 1));
    return counter & 1 ? odd : even;
}

enum { BLOCK = 64 };

/* Fills a block with loops that the compiler vectorizes. */
static void fill_pairs(float values[2 * BLOCK], double scale, uint64_t key, uint64_t first) {
    uint64_t of_radius[BLOCK], of_angle[BLOCK], from = key + (first + 1) * GOLDEN;
    float even[BLOCK], odd[BLOCK];
    for (int i = 0; i < BLOCK; i++) of_radius[i] = mix(from + 2 * (uint64_t)i * GOLDEN);
    for (int i = 0; i < BLOCK; i++) of_angle[i] = mix(from + (2 * (uint64_t)i + 1) * GOLDEN);
    for (int i = 0; i < BLOCK; i++) {
        double a, b;
        normal_pair(&a, &b, of_radius[i], of_angle[i]);
        even[i] = (float)(scale * a);
        odd[i] = (float)(scale * b);
    }
    for (int i = 0; i < BLOCK; i++) values[2 * i] = even[i], values[2 * i + 1] = odd[i];
}

void random_normals(float *values, double scale, uint64_t seed, uint64_t stream, uint64_t first,
                    int64_t count) {
    uint64_t key = key_of(seed, stream);
    int64_t i = first % 2 == 1 && count > 0; /* whole pairs begin here */
    if (i > 0) values[0] = (float)(scale * random_normal(seed, stream, first));
    for (; i + 2 * BLOCK <= count; i += 2 * BLOCK)
        fill_pairs(values + i, scale, key, first + (uint64_t)i);
    for (; i < count; i++)
        values[i] = (float)(scale * random_normal(seed, stream, first + (uint64_t)i));
}

uint64_t random_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count) {
    /* Four rounds look random on large ranges, but not on the ten or forty sequences of a small
     * file. */
    enum { ROUNDS = 8 };
    assert(index < count);
    /* An eight-round Feistel network permutes the smallest even-width power of two that holds
     * count. Values outside are permuted again until one is inside (cycle walking), fewer than four
     * times on average. */
    int half_bits = 1;
    while (half_bits < 32 && ((uint64_t)1 << (2 * half_bits)) < count) half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    do {
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (random_bits(seed, stream * ROUNDS + round, right) & mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= count);
    return index;
}
