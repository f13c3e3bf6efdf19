#include "data/util/statistics.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include <stb/stb_ds.h>

double mean_of(const double *values, int count) {
    double sum = 0;
    int finite = 0;
    for (int i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        sum += values[i];
        finite++;
    }
    return finite ? sum / finite : NAN;
}

double deviation_of(const double *values, int count) {
    double mean = mean_of(values, count), sum = 0;
    int finite = 0;
    for (int i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        sum += (values[i] - mean) * (values[i] - mean);
        finite++;
    }
    return finite > 1 ? sqrt(sum / (finite - 1)) : NAN;
}

static int compare_numbers(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double quantile_of(const double *values, int count, double share) {
    double *sorted = NULL, quantile = NAN;
    for (int i = 0; i < count; i++)
        if (isfinite(values[i])) arrput(sorted, values[i]);
    int finite = (int)arrlen(sorted);
    if (finite > 0) {
        qsort(sorted, (size_t)finite, sizeof *sorted, compare_numbers);
        const double place = share * (finite - 1), low = floor(place);
        const double after = sorted[(int)ceil(place)];
        quantile = sorted[(int)low] + (place - low) * (after - sorted[(int)low]);
    }
    arrfree(sorted);
    return quantile;
}

double median_of(const double *values, int count) {
    return quantile_of(values, count, 0.5);
}

double correlation_of(const double *a, const double *b, int count) {
    double a_sum = 0, b_sum = 0, aa = 0, bb = 0, ab = 0;
    int finite = 0;
    for (int i = 0; i < count; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) continue;
        a_sum += a[i];
        b_sum += b[i];
        finite++;
    }
    if (finite < 3) return NAN;
    for (int i = 0; i < count; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) continue;
        double x = a[i] - a_sum / finite, y = b[i] - b_sum / finite;
        aa += x * x;
        bb += y * y;
        ab += x * y;
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

struct partial {
    double sum;
    int finite;
};

static void add_value(struct partial *partial, double value) {
    if (!isfinite(value)) return;
    partial->sum += value;
    partial->finite++;
}

/* The series is divided into blocks of the window's length, so that any window is the end of one
 * block and the beginning of the next. Its sum takes one addition, and no value that left the
 * window is subtracted. So the sums are as exact after a loss of 1e10 as before it. */
void smooth(double *out, const double *values, int count, int window) {
    assert(window >= 1);
    struct partial *rest = NULL; /* sums from position k of the block to its end */
    arrsetlen(rest, (size_t)window);
    for (int i = 0; i < count; i++) out[i] = NAN;
    for (int block = 0; block + window <= count; block += window) {
        struct partial next = {0, 0}; /* sum from the beginning of the next block */
        for (int k = window - 1; k >= 0; k--) {
            rest[k] = k + 1 < window ? rest[k + 1] : (struct partial){0, 0};
            add_value(&rest[k], values[block + k]);
        }
        for (int k = 0; k < window && block + k + window <= count; k++) {
            int finite = rest[k].finite + next.finite;
            if (2 * finite >= window)
                out[block + k + window / 2] = (rest[k].sum + next.sum) / finite;
            if (block + window + k < count) add_value(&next, values[block + window + k]);
        }
    }
    arrfree(rest);
}

double student_95(int freedom) {
    static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                   2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131};
    enum { ROWS = sizeof table / sizeof *table };
    assert(freedom >= 1);
    if (freedom <= ROWS) return table[freedom - 1];
    /* Cornish-Fisher expansion at the normal distribution's 1.96; the error is less than 0.001. */
    return 1.959964 + 2.372271 / freedom + 2.822535 / ((double)freedom * freedom);
}

struct difference difference_of(const double *percent, const double *reference, int count) {
    struct difference d = {count, NAN, NAN, NAN, NAN, false};
    for (int i = 0; i < count; i++)
        if (!isfinite(percent[i])) return d;
    d.mean = mean_of(percent, count);
    if (count < 2) return d;
    d.scatter = deviation_of(percent, count);
    d.noise = 100 * deviation_of(reference, count) / fabs(mean_of(reference, count));
    double consistent = student_95(count - 1) * d.scatter / sqrt(count);
    double large = 2 * d.noise * sqrt(2.0 / count);
    d.margin = fmin(consistent, large);
    d.real = !(fabs(d.mean) <= d.margin);
    return d;
}
