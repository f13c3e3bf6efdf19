/* Counter-based random numbers: every value is a pure function of (seed, stream, counter).
 *
 * Nothing is carried from one call to the next, so there is no generator state to save in a
 * checkpoint, and any thread may ask for any value in any order. A stream separates uses that
 * share a seed (weights of one tensor, one epoch's order, the samples of one step). */
#pragma once

#include <stdint.h>

/* 64 well-mixed bits. */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter);

/* Uniform in [0, 1) with 53 random bits. */
double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

/* Standard normal by the Box-Muller transform; counters 2k and 2k + 1 are one pair. The logarithm,
 * sine and cosine are our own, as those of libm differ from machine to machine: the same bits
 * everywhere, within 3e-14 of the exact value. |value| < 8.5. */
double random_normal(uint64_t seed, uint64_t stream, uint64_t counter);

/* values[i] = scale * random_normal(seed, stream, first + i), many at once. */
void random_normals(float *values, double scale, uint64_t seed, uint64_t stream, uint64_t first,
                    int64_t count);

/* The place of `index` in a random order of 0..count-1: a bijection for every (seed, stream),
 * found without a table. Requires index < count. */
uint64_t random_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count);
