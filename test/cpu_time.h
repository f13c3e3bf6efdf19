/* Checks that time grows in proportion to size, in processor time, which is less affected by
 * other programs than a clock (they still slow memory down). */
#pragma once

#include <stdbool.h>
#include <time.h>

static inline double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Four times the size may take at most 8 times as long, in one of three tries, plus a constant
 * that quadratic time exceeds by far at a megabyte. */
static inline bool grows_in_proportion(void (*work)(const void *argument, size_t size),
                                       const void *argument, size_t size) {
    for (int try = 0; try < 3; try++) {
        const double begin = cpu_seconds();
        work(argument, size / 4);
        const double middle = cpu_seconds();
        work(argument, size);
        if (cpu_seconds() - middle < 8 * (middle - begin) + 0.2) return true;
    }
    return false;
}
