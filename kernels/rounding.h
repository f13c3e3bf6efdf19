/* Storage of fp32 master weights and AdamW's moments in 16-bit pieces.
 *
 * The 16-bit copy of a master weight is its nearest value; in bf16 ties round away from zero,
 * unlike in any other store (kernels/dtype.h). Then the copy and a signed 16-bit remainder give the
 * master weight:
 *
 *     bits of the master = (bits of the copy << 16) + remainder
 *
 * exactly, for all finite values, subnormals and those that the copy rounds to infinity, and for
 * infinities; a NaN stays a NaN. With ties to even, the master weights half above and half below an
 * even copy would need the remainders 0x8000 and -0x8000, but 16 bits can hold only one of them.
 *
 * Moments in bf16 are rounded stochastically: up with the probability of the discarded fraction, so
 * that the many small additions of a moving average are not lost (Gupta et al. 2015). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/host_device.h"

/* Splits a master weight with these fp32 bits. upper_half is the nearest bf16, ties away from zero,
 * since half of the last bit kept is added to the magnitude. remainder_of is the lower half as a
 * signed number. joined_bits restores the fp32 bits. */
static ON_HOST_AND_DEVICE uint32_t upper_half(uint32_t bits) {
    uint32_t is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return (is_nan ? bits | 0x400000u : bits + 0x8000u) >> 16;
}

static ON_HOST_AND_DEVICE int16_t remainder_of(uint32_t bits) {
    return (int16_t)(uint16_t)bits;
}

static ON_HOST_AND_DEVICE uint32_t joined_bits(uint16_t upper, int16_t remainder) {
    return ((uint32_t)upper << 16) + (uint32_t)(int32_t)remainder;
}

uint16_t bf16_from_master(float value);

/* Stores the copies of count master weights at element `offset` of data. */
void copy_masters(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);

void split_masters(uint16_t *upper, int16_t *remainder, const float *values, size_t count);
void join_masters(float *values, const uint16_t *upper, const int16_t *remainder, size_t count);

/* Seeds of all random bits of a step. */
struct rounding_key {
    uint32_t first, second;
};

/* Returns 32 random bits for element `index`, by the multiplications and shifts of a hash with low
 * bias (Wellons, "Prospecting for hash functions", 2018), the second key in its middle. Elements
 * 2^32 apart share them, so that vector code needs no wider index. */
static ON_HOST_AND_DEVICE uint32_t rounding_bits(struct rounding_key key, uint32_t index) {
    uint32_t x = index ^ key.first;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = ((x ^ (x >> 15)) + key.second) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Returns the key of a row of the run, from that of the tensor. */
static ON_HOST_AND_DEVICE struct rounding_key rounding_row_key(struct rounding_key key,
                                                               int64_t row) {
    uint32_t low = (uint32_t)row, high = (uint32_t)((uint64_t)row >> 32);
    struct rounding_key of_high = {key.second, key.first ^ high};
    struct rounding_key of_row = {rounding_bits(key, low), rounding_bits(of_high, low)};
    return of_row;
}

/* Returns the bf16 bits of the value with these fp32 bits, given 16 random bits. Above the largest
 * finite value it truncates, so that no finite value becomes infinite. Infinities and quiet NaN,
 * the only NaN that arithmetic produces, are unchanged. */
static ON_HOST_AND_DEVICE uint32_t bf16_stochastic(uint32_t bits, uint32_t random) {
    return (bits + ((bits & 0x7fffffffu) < 0x7f7f0000u ? random : 0)) >> 16;
}
