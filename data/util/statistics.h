/* Statistics of series of numbers, and the significance of a difference between two groups of runs.
 * Non-finite values count as missing; the result is NaN if no value is left. */
#pragma once

#include <stdbool.h>

double mean_of(const double *values, int count);
double deviation_of(const double *values, int count); /* of a sample (n - 1); needs 2 values */
double median_of(const double *values, int count);
double quantile_of(const double *values, int count, double share); /* interpolated linearly */

/* Returns Pearson's correlation over the pairs that are finite; at least 3 of them, and both series
 * must vary. */
double correlation_of(const double *a, const double *b, int count);

/* Sets out[i] to the mean of the `window` values around values[i]; an even window has one more
 * before than after. out[i] is NaN if the window leaves the series, or if less than half of it is
 * finite. Time is linear in count for any window. */
void smooth(double *out, const double *values, int count, int window);

/* Returns the critical value of Student's t (two-sided, 95 %): the mean of freedom + 1 normal
 * values is within this many standard errors in 95 of 100 cases. freedom >= 1. */
double student_95(int freedom);

/* The difference of a metric between runs and reference runs, in %, pair by pair.
 *
 * A difference of n pairs is called real if it is larger than the smaller of two margins:
 *
 * - consistent, student_95(n - 1) * scatter / sqrt(n): the pairs agree on it;
 * - large, 2 * noise * sqrt(2 / n): other seeds change the reference by less than this.
 *
 * One margin is enough. Pairs see the same batches, so a small difference can be consistent. And
 * one outlier makes the scatter so large that only the second margin detects a difference. Without
 * any real difference, the two margins still call about one in ten differences real. With 3 pairs
 * the first margin is 2.5 times the scatter, which is itself known only within a factor of about 4.
 * So differences below twice the scatter stay "within noise" until there are more seeds. With 1
 * pair the noise is unknown. */
struct difference {
    int count;      /* number of pairs; if any is not finite, the rest is NaN */
    double mean;    /* % */
    double scatter; /* standard deviation of the pairs' differences, percentage points */
    double noise;   /* standard deviation of the reference over its seeds, % of its mean */
    double margin;  /* the smaller of the two margins; NaN for 1 pair */
    bool real;      /* |mean| > margin */
};

/* percent[i] is the difference of pair i, reference[i] the metric of its reference run. */
struct difference difference_of(const double *percent, const double *reference, int count);
