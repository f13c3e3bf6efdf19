/* Figures of series of numbers, and what a difference between two groups of runs is worth. What is
 * not finite counts as missing; NaN is the answer where there is none. */
#pragma once

#include <stdbool.h>

double mean_of(const double *values, int count);
double deviation_of(const double *values, int count); /* of a sample: n - 1; at least 2 values */
double median_of(const double *values, int count);

/* Pearson's, over the pairs that are finite; at least 3 of them, and both must vary. */
double correlation_of(const double *a, const double *b, int count);

/* out[i] becomes the mean of the window values around values[i], for an even window one more before
 * than after; NaN where the window leaves the series, or less than half of it is finite. Takes time
 * in proportion to count, whatever the window. */
void smooth(double *out, const double *values, int count, int window);

/* How many standard errors the mean of freedom + 1 values from a normal distribution stays within,
 * in 95 of 100 cases (Student's t, two-sided). freedom >= 1. */
double student_95(int freedom);

/* A figure of several runs against the same figure of reference runs, in %, pair by pair.
 *
 * A difference of n pairs is called real when it is larger than the smaller of two margins:
 *
 * - consistent, student_95(n - 1) * scatter / sqrt(n): the pairs agree about it;
 * - large, 2 * noise * sqrt(2 / n): other seeds do not move the reference so far.
 *
 * Either is enough: pairs see the same batches, so a small difference can be consistent; and
 * one run gone astray makes the scatter so large that only the second margin shows it. Two margins
 * call about one in ten differences of nothing real. With 3 pairs the first is 2.5 times a scatter
 * that is itself known within a factor of about 4 only, so differences below twice the scatter
 * stay "within noise" until there are more seeds. With 1 pair nothing is known about noise. */
struct difference {
    int count;      /* pairs, all finite; else the rest is NaN */
    double mean;    /* % */
    double scatter; /* standard deviation of the pairs' differences, percentage points */
    double noise;   /* standard deviation of the reference over its seeds, % of its mean */
    double margin;  /* the smaller of the two margins; NaN for 1 pair */
    bool real;      /* |mean| > margin */
};

/* percent[i] is the difference of pair i, reference[i] the figure of its reference run. */
struct difference difference_of(const double *percent, const double *reference, int count);
