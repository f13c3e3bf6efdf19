/* The middle of a few measurements. */
#ifndef MODEL_LAB_MEDIAN_H
#define MODEL_LAB_MEDIAN_H

#include <stdlib.h>

static inline int median_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts values, count > 0; of an even number the larger one of the two in the middle. */
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, median_order);
    return values[count / 2];
}

#endif
