/* Axes of charts: which stretch of values one shows, where its ticks stand and what they say. */
#pragma once

#include <stdbool.h>

enum { AXIS_TICKS_MAX = 24 };

enum axis_kind { AXIS_LINEAR, AXIS_DECADES, AXIS_POWERS_OF_TWO };

struct axis_tick {
    double value;
    char label[24];
    char power[8]; /* "" or what stands raised behind the label: label 10, power -5 */
};

struct axis {
    enum axis_kind kind;
    double from, to; /* the values at its two ends, from < to */
    int tick_count;
    struct axis_tick ticks[AXIS_TICKS_MAX]; /* ascending, from .. to */
};

/* An axis that shows smallest .. largest (finite; above 0 unless linear) with about six ticks at
 * round values: 1, 2 or 5 times a power of ten; on logarithmic axes, powers, as far apart as
 * needed. Both may be the same value. A linear axis may be `snug`, and end where the values do
 * instead of at a tick, and `whole`, without ticks between integers. */
void axis_make(struct axis *axis, enum axis_kind kind, double smallest, double largest, bool snug,
               bool whole);

/* 0 at its beginning, 1 at its end; beyond for values beyond. */
double axis_place(const struct axis *axis, double value);
