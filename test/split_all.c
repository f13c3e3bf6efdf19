/* make test-split: every fp32 value through split_masters and back, all 2^32 of them. make test
 * runs a sample (test/kernels/test_rounding.c).
 *
 * Exits with 1 and names the first value that differs; a NaN has to stay a NaN. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/rounding.h"

enum { BLOCK = 4096 };

static bool is_nan(uint32_t bits) {
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* The nearest of the two neighbors, ties away from zero, in integers of the magnitude. */
static uint16_t nearest(uint32_t bits) {
    uint32_t magnitude = bits & 0x7fffffff, below = magnitude >> 16;
    uint32_t away = (magnitude & 0xffff) >= 0x8000;
    return (uint16_t)((bits >> 16 & 0x8000) | (below + away));
}

/* Returns how many of the BLOCK patterns from `first` on are wrong; *worst is set to one of
 * them. */
static int64_t check_block(uint32_t first, uint32_t *worst) {
    float values[BLOCK], joined[BLOCK];
    uint16_t upper[BLOCK];
    int16_t remainder[BLOCK];
    uint32_t bits[BLOCK], back[BLOCK];
    int64_t wrong = 0;
    for (uint32_t i = 0; i < BLOCK; i++) bits[i] = first + i;
    memcpy(values, bits, sizeof values);
    split_masters(upper, remainder, values, BLOCK);
    join_masters(joined, upper, remainder, BLOCK);
    memcpy(back, joined, sizeof back);
    for (int i = 0; i < BLOCK; i++) {
        bool right = is_nan(bits[i]) ? is_nan(back[i]) && is_nan((uint32_t)upper[i] << 16)
                                     : back[i] == bits[i] && upper[i] == nearest(bits[i]);
        if (right) continue;
        wrong++;
        *worst = bits[i];
    }
    return wrong;
}

int main(void) {
    int64_t wrong = 0;
    uint32_t worst = 0;
#pragma omp parallel for reduction(+ : wrong)
    for (int64_t block = 0; block < (INT64_C(1) << 32) / BLOCK; block++) {
        uint32_t found = 0;
        int64_t count = check_block((uint32_t)(block * BLOCK), &found);
        wrong += count;
        if (count) {
#pragma omp critical
            worst = found;
        }
    }
    if (wrong)
        printf("%" PRId64 " of 2^32 values are wrong, such as %08" PRIx32 "\n", wrong, worst);
    else printf("all of 2^32 values come back\n");
    return wrong != 0;
}
