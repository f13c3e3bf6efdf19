/* What the benchmarks share: operations by number, and medians. */
#ifndef TEST_BENCH_H
#define TEST_BENCH_H

#include <stdlib.h>

#include "kernels/kernels.h"

enum operation_id {
#define X(name) ID_##name,
    OPERATIONS(X)
#undef X
        OPERATION_IDS
};

static inline const char *operation_name(int id) {
    static const char *const names[] = {
#define X(name) #name,
        OPERATIONS(X)
#undef X
    };
    return names[id];
}

static inline int median_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts values. */
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, median_order);
    return values[count / 2];
}

#endif
