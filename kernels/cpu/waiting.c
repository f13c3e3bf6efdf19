#include "kernels/cpu/waiting.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/program_names.h"

static const double SPIN_SECONDS = 50e-6;

/* clang has an OpenMP of its own, which does not read GOMP_SPINCOUNT. */
#ifdef __clang__
enum { GNU_OPENMP = 0 };
#else
enum { GNU_OPENMP = 1 };
#endif

/* One iteration of OpenMP's wait loop. On x86 it takes 10 to 140 cycles, depending on the
 * processor. */
static inline void relax(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    __asm__ volatile("" ::: "memory");
#endif
}

/* Returns the number of iterations that take SPIN_SECONDS, from the shortest of several
 * measurements, which was not interrupted. */
static long spin_iterations(void) {
    enum { ITERATIONS = 200, TRIES = 5 };
    double shortest = 1;
    for (int try = 0; try < TRIES; try++) {
        double begin = omp_get_wtime();
        for (int i = 0; i < ITERATIONS; i++) relax();
        double taken = omp_get_wtime() - begin;
        if (taken < shortest) shortest = taken;
    }
    long count = (long)(SPIN_SECONDS * ITERATIONS / (shortest + 1e-9));
    return count < 100 ? 100 : count;
}

void cpu_limit_spinning(char **argv) {
    char count[32], path[FILE_PATH_MAX];
    if (!GNU_OPENMP || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    snprintf(count, sizeof count, "%ld", spin_iterations());
    /* Resolved, because a process executed as /proc/self/exe would be named "exe". */
    if (program_path(path)) return;
    if (setenv("GOMP_SPINCOUNT", count, 1) == 0) execv(path, argv);
}
