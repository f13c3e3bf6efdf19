/* Counter-based random numbers: every value is a pure function of (seed, stream, counter).
 *
 * There is no generator state, so none has to be saved in a checkpoint, and any thread may compute
 * any value in any order. Streams separate uses that share a seed (weights of one tensor, the order
 * of one epoch, the samples of one step). Streams are independent enough for dropout and
 * initialization, not for statistics: over 96 keys, draws two columns apart correlate by -8e-4. */
#pragma once

#include <stdint.h>

/* Returns 64 uniformly distributed random bits. */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter);

/* Returns a uniform value in [0, 1) with 53 random bits. */
double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

/* Returns a standard normal value by the Box-Muller transform; counters 2k and 2k + 1 form a pair.
 * Logarithm, sine and cosine are our own, since those of libm differ between machines. The bits are
 * the same everywhere, and within 3e-14 of the exact value. |value| < 8.5. */
double random_normal(uint64_t seed, uint64_t stream, uint64_t counter);

/* Fills values[i] = scale * random_normal(seed, stream, first + i), vectorized. */
void random_normals(float *values, double scale, uint64_t seed, uint64_t stream, uint64_t first,
                    int64_t count);

/* Returns the position of `index` in a random permutation of 0..count-1: a bijection for every
 * (seed, stream), computed without a table. Orders of very few items are not equally likely: of 5
 * or 6, the frequency of an order is 0.7 to 1.5 of the fair one. Requires index < count. */
uint64_t random_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count);
