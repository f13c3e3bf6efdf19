/* Moments in 8 bits on the device (kernels/moment_code.h). A warp has a block of 256 elements, in
 * chunks of N for each lane:
 *
 *     | lane 0 | lane 1 | ... | lane 31 |  lane 0 | ... | lane 31 |      N = 4: 2 chunks
 *
 * so that the scale, the largest magnitude, is found without shared memory. */
#pragma once

#include "kernels/cuda/flat.h"
#include "kernels/cuda/reduce.h"
#include "kernels/moment_code.h"
#include "kernels/rounding.h"

/* A code, as the element type of an array. */
struct coded {
    uint8_t code;
};

template <int N> static constexpr __host__ __device__ int chunks_of_a_block() {
    return MOMENT_BLOCK / (WARP * N);
}

/* Computes the values of N codes, at an address that is a multiple of N. */
template <int N>
static __device__ __forceinline__ void load_codes(float *values, const struct coded *from,
                                                  float scale, bool is_signed) {
    const typename bits_of<N>::type bits = *(const typename bits_of<N>::type *)from;
    uint8_t codes[N];
    memcpy((void *)codes, &bits, sizeof codes);
    for (int i = 0; i < N; i++)
        values[i] = scale * (is_signed ? moment_value(codes[i], 1) : moment_value(codes[i], 0));
}

/* How a lane rounds its values: `index` is that of the first value in the random sequence. */
struct code_rounding {
    bool stochastic;
    struct rounding_key key;
    uint32_t index;
};

static __device__ __forceinline__ int code_of(float value, float inverse, bool is_signed,
                                              const struct code_rounding *rounding, int i) {
    const float magnitude = fabsf(value) * inverse;
    int level;
    if (rounding->stochastic) {
        uint32_t random = rounding_bits(rounding->key, rounding->index + (uint32_t)i);
        level = is_signed ? moment_level_stochastic(magnitude, random & 0xffff, 1)
                          : moment_level_stochastic(magnitude, random >> 16, 0);
    } else level = is_signed ? moment_level(magnitude, 1) : moment_level(magnitude, 0);
    return is_signed ? moment_code(level, value < 0, 1) : level;
}

template <int N>
static __device__ __forceinline__ void store_codes(struct coded *to, const float *values,
                                                   float inverse, bool is_signed,
                                                   const struct code_rounding *rounding) {
    typename bits_of<N>::type bits;
    uint8_t codes[N];
    for (int i = 0; i < N; i++)
        codes[i] = (uint8_t)code_of(values[i], inverse, is_signed, rounding, i);
    memcpy(&bits, (const void *)codes, sizeof bits);
    *(typename bits_of<N>::type *)to = bits;
}

/* Returns the scale of a block, given the values of a lane. All lanes call it. */
template <int COUNT> static __device__ __forceinline__ float block_scale(const float *values) {
    float largest = MOMENT_SCALE_MIN;
    for (int i = 0; i < COUNT; i++) largest = fmaxf(largest, fabsf(values[i]));
    return warp_max(largest);
}
