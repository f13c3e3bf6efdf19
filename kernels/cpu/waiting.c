#include "kernels/cpu/waiting.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const double SPIN_SECONDS = 50e-6;

/* What OpenMP's loop does in a turn. On x86 it takes 10 to 140 cycles, depending on the
 * processor. */
static inline void relax(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Turns of the loop that take SPIN_SECONDS. The shortest of some measurements, which nothing
 * interrupted. */
static long turns(void) {
    enum { TURNS = 200, TRIES = 5 };
    double shortest = 1;
    for (int try = 0; try < TRIES; try++) {
        double begin = omp_get_wtime();
        for (int i = 0; i < TURNS; i++) relax();
        double taken = omp_get_wtime() - begin;
        if (taken < shortest) shortest = taken;
    }
    long count = (long)(SPIN_SECONDS * TURNS / (shortest + 1e-9));
    return count < 100 ? 100 : count;
}

void cpu_wait_politely(char **argv) {
    char count[32];
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    snprintf(count, sizeof count, "%ld", turns());
    if (setenv("GOMP_SPINCOUNT", count, 1) == 0) execv("/proc/self/exe", argv);
}
