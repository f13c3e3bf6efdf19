#include "data/base/random.h"

#include <assert.h>
#include <math.h>

/* The finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
 * generators", 2014; constants of Stafford's variant 13). */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The odd constant nearest 2^64 / golden ratio keeps neighbouring counters far apart. */
static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint64_t key = mix(mix(seed + GOLDEN) ^ (stream * GOLDEN + 1));
    return mix(key + (counter + 1) * GOLDEN);
}

double random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    return (double)(random_bits(seed, stream, counter) >> 11) * 0x1p-53;
}

double random_normal(uint64_t seed, uint64_t stream, uint64_t counter) {
    /* 1 - u is in (0, 1], so the logarithm is finite. */
    double radius = sqrt(-2.0 * log(1.0 - random_uniform(seed, stream, 2 * counter)));
    double angle = 6.283185307179586 * random_uniform(seed, stream, 2 * counter + 1);
    return radius * cos(angle);
}

uint64_t random_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count) {
    /* Four rounds already look random on large ranges, but not on the ten or forty sequences of a
     * small file. */
    enum { ROUNDS = 8 };
    assert(index < count);
    /* An eight-round Feistel network permutes the smallest even-width power of two that holds
     * count; values that fall outside are sent through again until one lands inside (cycle
     * walking), fewer than four times on average. */
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
