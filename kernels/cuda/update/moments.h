/* Moments in 8 bits on the device (kernels/moment_code.h). A warp has a block of 256 elements, in
 * chunks of N for each lane:
 *
 *     | lane 0 | lane 1 | ... | lane 31 |  lane 0 | ... | lane 31 |      N = 4: 2 chunks
 *
 * so that the scale, the largest magnitude, is found without shared memory.
 *
 * Seven lines for each conversion would take longer than the memory. Tables in shared memory choose
 * the one line that holds. A lane's entry of those of 32 words is in the bank of its own number, so
 * that lanes never wait for each other there. */
#pragma once

#include "kernels/cuda/flat.h"
#include "kernels/cuda/reduce.h"
#include "kernels/moment_code.h"
#include "kernels/rounding.h"

/* A code, as the element type of an array. */
struct coded {
    uint8_t code;
};

enum { BINADES = 32, FIRST_BINADE = 97 /* exponent field of 2^-30, which is level 0 */ };

/* Tables of signed codes at [1], of unsigned ones at [0]. A decade is counted from 1; in 0 are the
 * magnitudes of level 0. */
struct moment_tables {
    float4 lines[2][8];           /* decade -> slope, height, least and largest p */
    uint32_t decades[2][BINADES]; /* what a fraction of 23 bits, added, makes the decade << 23 */
    float values[2][256];         /* code -> value */
};

/* Returns the line of decade k of moment_level, less a half, since p is rounded to nearest. */
static __device__ __forceinline__ float4 line_of(int k, int factor) {
    const float below = (float)(factor - 1);
    double power = 1e6;
    for (int i = 1; i < k; i++) power /= 10;
    if (k == 0) return make_float4(0, below, below, below);
    const double n = factor << (k - 1);
    return make_float4((float)(power * n / 0.9), (float)(n * 8 / 9 - 0.5), (float)n,
                       (float)(2 * n - 1));
}

/* A binade has at most one border between decades. */
static __device__ __forceinline__ uint32_t decades_of(int binade, int factor) {
    const uint32_t begin = (uint32_t)(binade + FIRST_BINADE) << 23;
    uint32_t decades = 0;
#define X(intervals, power)                                                             \
    {                                                                                   \
        const double n = (intervals)*factor;                                            \
        const float middle =                                                            \
            (float)(((intervals) == 1 ? 0.05 + 0.225 / n : 0.1 + 0.18 / n) / (power));  \
        const uint32_t border = __float_as_uint(middle);                                \
        if (border <= begin) decades += 1u << 23;                                       \
        else if (border < begin + (1u << 23)) decades += (1u << 23) - (border - begin); \
    }
    MOMENT_DECADES(X)
#undef X
    return decades;
}

/* Returns the tables of a block of at least 64 threads. All call it, and synchronize before they
 * read. */
static __device__ __forceinline__ const struct moment_tables *moment_tables_make() {
    __shared__ __align__(16) struct moment_tables tables; /* float4 is read whole */
    const int i = (int)threadIdx.x, is_signed = i / BINADES, factor = is_signed ? 1 : 2;
    for (int code = i; code < 256; code += (int)blockDim.x) {
        tables.values[0][code] = moment_value(code, 0);
        tables.values[1][code] = moment_value(code, 1);
    }
    if (is_signed > 1) return &tables;
    tables.decades[is_signed][i % BINADES] = decades_of(i % BINADES, factor);
    if (i % BINADES < 8) tables.lines[is_signed][i % BINADES] = line_of(i % BINADES, factor);
    return &tables;
}

/* moment_level by the tables. */
static __device__ __forceinline__ int level_of(float magnitude, const int is_signed,
                                               const struct moment_tables *tables) {
    const int factor = is_signed ? 1 : 2;
    const float last = (float)(1 - 0.225 / (64 * factor)), least = 0x1p-30f;
    const float bounded = fminf(fmaxf(magnitude, least), 1); /* `least` for a NaN */
    const uint32_t bits = __float_as_uint(bounded) - ((uint32_t)FIRST_BINADE << 23);
    const uint32_t fraction = bits & ((1u << 23) - 1);
    const uint32_t k = (fraction + tables->decades[is_signed][bits >> 23]) >> 23;
    const float4 line = tables->lines[is_signed][k];
    const float p = fminf(fmaxf(fmaf(line.x, bounded, line.y), line.z), line.w);
    const int rounded_p = (int)(__float_as_uint(p + 0x1p23f) & 0xff);
    return rounded_p - factor + 1 + (bounded >= last);
}

/* moment_level_stochastic by the tables. */
static __device__ __forceinline__ int level_at_random(float magnitude, uint32_t random,
                                                      const int is_signed,
                                                      const struct moment_tables *tables) {
    const int last = is_signed ? 128 : 255;
    const float *values = tables->values[is_signed] + (is_signed ? 127 : 0); /* by level */
    int level = level_of(magnitude, is_signed, tables);
    level -= magnitude < values[level] || level == last;
    const float low = values[level], step = values[level + 1] - low;
    return level + ((float)random * step < (magnitude - low) * 65536.0f);
}

template <int N> static constexpr __host__ __device__ int chunks_of_a_block() {
    return MOMENT_BLOCK / (WARP * N);
}

/* Computes the values of N codes, at an address that is a multiple of N. */
template <int N>
static __device__ __forceinline__ void load_codes(float *values, const struct coded *from,
                                                  float scale, const int is_signed,
                                                  const struct moment_tables *tables) {
    const typename bits_of<N>::type bits = *(const typename bits_of<N>::type *)from;
    uint8_t codes[N];
    memcpy((void *)codes, &bits, sizeof codes);
    for (int i = 0; i < N; i++) values[i] = scale * tables->values[is_signed][codes[i]];
}

/* How a lane rounds its values: `index` is that of the first value in the random sequence. */
struct code_rounding {
    const struct moment_tables *tables;
    bool stochastic;
    struct rounding_key key;
    uint32_t index;
};

static __device__ __forceinline__ int code_of(float value, float inverse, const int is_signed,
                                              const struct code_rounding *rounding, int i) {
    const float magnitude = fabsf(value) * inverse;
    int level;
    if (rounding->stochastic) {
        uint32_t random = rounding_bits(rounding->key, rounding->index + (uint32_t)i);
        random = is_signed ? random & 0xffff : random >> 16;
        level = level_at_random(magnitude, random, is_signed, rounding->tables);
    } else level = level_of(magnitude, is_signed, rounding->tables);
    return moment_code(level, value < 0, is_signed);
}

template <int N>
static __device__ __forceinline__ void store_codes(struct coded *to, const float *values,
                                                   float inverse, const int is_signed,
                                                   const struct code_rounding *rounding) {
    typename bits_of<N>::type bits;
    uint8_t codes[N];
#pragma unroll
    for (int i = 0; i < N; i++)
        codes[i] = (uint8_t)code_of(values[i], inverse, is_signed, rounding, i);
    memcpy(&bits, (const void *)codes, sizeof bits);
    *(typename bits_of<N>::type *)to = bits;
}

/* Returns the scale of a block, given the values of a lane. All lanes call it, and one may then write
 * over the scale that all have read. */
template <int COUNT> static __device__ __forceinline__ float block_scale(const float *values) {
    float largest = MOMENT_SCALE_MIN;
    for (int i = 0; i < COUNT; i++) largest = fmaxf(largest, fabsf(values[i]));
    largest = warp_max(largest);
    __syncwarp();
    return largest;
}
