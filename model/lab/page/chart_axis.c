#include "model/lab/page/chart_axis.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WANTED = 6 }; /* ticks, about */

/* Beyond, a difference of two values might overflow. */
static const double LARGEST = 1e300;
/* Closer together, relative to their size, values are one value. */
static const double SAME = 1e-9;

static double clamped(double value) {
    return fmin(fmax(value, -LARGEST), LARGEST);
}

static double clamped_to(enum axis_kind kind, double value) {
    return kind == AXIS_LINEAR ? clamped(value) : fmin(fmax(value, 1 / LARGEST), LARGEST);
}

double axis_place(const struct axis *axis, double value) {
    if (axis->kind == AXIS_LINEAR) return (clamped(value) - axis->from) / (axis->to - axis->from);
    double log_from = log(axis->from); /* a ratio might overflow, logarithms do not */
    return (log(clamped_to(axis->kind, value)) - log_from) / (log(axis->to) - log_from);
}

static struct axis_tick *add_tick(struct axis *axis, double value) {
    assert(axis->tick_count < AXIS_TICKS_MAX);
    struct axis_tick *tick = &axis->ticks[axis->tick_count++];
    *tick = (struct axis_tick){.value = value};
    return tick;
}

/* ---- what a tick says */

/* Hyphens are narrower than a digit, a minus is as wide as a plus. */
static void use_minus(char *label, size_t size) {
    static const char minus[] = "\u2212";
    size_t length = strlen(label);
    if (*label != '-') return;
    assert(length + sizeof minus - 1 <= size);
    memmove(label + sizeof minus - 1, label + 1, length);
    memcpy(label, minus, sizeof minus - 1);
}

static int decimal_exponent(double value) {
    char digits[32]; /* log10 would be off at some powers of ten */
    snprintf(digits, sizeof digits, "%.14e", value);
    return atoi(strchr(digits, 'e') + 1);
}

/* As a multiple of a power of ten: 3·10⁻⁵. */
static void label_scientific(struct axis_tick *tick, int exponent, double step) {
    int digits = exponent - decimal_exponent(step);
    double multiple = tick->value / pow(10, exponent);
    snprintf(tick->power, sizeof tick->power, "%d", exponent);
    use_minus(tick->power, sizeof tick->power);
    if (fabs(multiple) == 1 && digits <= 0)
        snprintf(tick->label, sizeof tick->label, multiple < 0 ? "-10" : "10");
    else snprintf(tick->label, sizeof tick->label, "%.*f·10", digits > 0 ? digits : 0, multiple);
    use_minus(tick->label, sizeof tick->label);
}

static void label_tick(struct axis_tick *tick, double step, double largest) {
    static const struct {
        double unit;
        char suffix[2];
    } units[] = {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}};
    if (tick->value == 0) {
        snprintf(tick->label, sizeof tick->label, "0");
        return;
    }
    if (largest >= 1e12 || largest < 1e-3) {
        label_scientific(tick, decimal_exponent(largest), step);
        return;
    }
    int unit = 0;
    while (units[unit].unit > 1 && (largest <= 10 * units[unit].unit || step < units[unit].unit))
        unit++;
    int decimals = -decimal_exponent(step);
    snprintf(tick->label, sizeof tick->label, "%.*f%s",
             units[unit].unit > 1 || decimals < 0 ? 0 : decimals, tick->value / units[unit].unit,
             units[unit].suffix);
    use_minus(tick->label, sizeof tick->label);
}

/* ---- linear */

/* 1, 2 or 5 times a power of ten, not below `least`. */
static double round_step(double least) {
    int exponent = decimal_exponent(least);
    for (int digit = 1;; digit = digit == 1 ? 2 : digit == 2 ? 5 : 10) {
        double step = digit * pow(10, exponent);
        if (step >= least * (1 - SAME)) return step;
    }
}

static void make_linear(struct axis *axis, bool snug, bool whole) {
    double step = round_step((axis->to - axis->from) / WANTED);
    if (whole && step < 1) step = 1;
    double first = ceil(axis->from / step - SAME), last = floor(axis->to / step + SAME);
    if (!snug) {
        first = floor(axis->from / step + SAME);
        last = ceil(axis->to / step - SAME);
        if (axis->kind != AXIS_LINEAR && first < 1) first = 1; /* 0 has no place on such an axis */
        else axis->from = first * step;
        axis->to = last * step;
    }
    double largest = fmax(fabs(axis->from), fabs(axis->to));
    for (double i = first; i <= last; i++) label_tick(add_tick(axis, i * step), step, largest);
}

/* ---- logarithmic */

static void make_powers_of_two(struct axis *axis) {
    int first = (int)floor(log2(axis->from) + SAME), last = (int)ceil(log2(axis->to) - SAME);
    int step = 1;
    while ((last - first) / step > WANTED) step *= 2;
    first = (int)floor((double)first / step) * step;
    last = (int)ceil((double)last / step) * step;
    axis->from = ldexp(1, first);
    axis->to = ldexp(1, last);
    for (int power = first; power <= last; power += step) {
        struct axis_tick *tick = add_tick(axis, ldexp(1, power));
        snprintf(tick->label, sizeof tick->label, "2");
        snprintf(tick->power, sizeof tick->power, "%d", power);
        use_minus(tick->power, sizeof tick->power);
    }
}

static void label_decade(struct axis_tick *tick, const struct axis *axis) {
    if (axis->from >= 0.999e-3 && axis->to <= 1.001e4)
        snprintf(tick->label, sizeof tick->label, "%.12g", tick->value);
    else label_scientific(tick, decimal_exponent(tick->value), tick->value);
}

/* One or two decades have ticks between powers of ten; less is too short even for those. */
static void make_decades(struct axis *axis) {
    static const int all[] = {1, 2, 5};
    int first = (int)floor(log10(axis->from) + SAME), last = (int)ceil(log10(axis->to) - SAME);
    int digits = axis->to <= axis->from * 100 * (1 + SAME) ? 3 : 1;
    int step =
        last - first > WANTED && digits == 1 ? (int)round_step((double)(last - first) / WANTED) : 1;
    if (axis->to < axis->from * 5) {
        make_linear(axis, false, false);
        return;
    }
    first = (int)floor((double)first / step) * step;
    last = (int)ceil((double)last / step) * step;
    double from = axis->from, to = axis->to;
    axis->from = pow(10, first);
    axis->to = pow(10, last);
    for (int i = 0; i < digits; i++) {
        double low = all[i] * pow(10, first), high = all[digits - 1 - i] * pow(10, last - 1);
        if (low <= from * (1 + SAME)) axis->from = low;
        if (high >= to * (1 - SAME)) axis->to = high;
    }
    for (int power = first; power <= last; power += step)
        for (int i = 0; i < digits; i++) {
            double value = all[i] * pow(10, power);
            if (value >= axis->from * (1 - SAME) && value <= axis->to * (1 + SAME))
                label_decade(add_tick(axis, value), axis);
        }
}

/* One value, or as good as one, is in the middle of an axis. */
static void widen(struct axis *axis) {
    double size = fmax(fabs(axis->from), fabs(axis->to));
    if (axis->kind != AXIS_LINEAR) {
        if (axis->to > axis->from * (1 + SAME)) return;
        double factor = axis->kind == AXIS_DECADES ? 10 : 2;
        axis->from /= factor;
        axis->to *= factor;
    } else if (axis->to - axis->from <= size * SAME || size < 1 / LARGEST) {
        double margin = size < 1 / LARGEST ? 1 : size * 0.1;
        axis->from -= margin;
        axis->to += margin;
    }
}

void axis_make(struct axis *axis, enum axis_kind kind, double smallest, double largest, bool snug,
               bool whole) {
    assert(isfinite(smallest) && isfinite(largest) && smallest <= largest);
    assert(kind == AXIS_LINEAR || (smallest > 0 && !snug && !whole));
    *axis = (struct axis){
        .kind = kind, .from = clamped_to(kind, smallest), .to = clamped_to(kind, largest)};
    widen(axis);
    switch (kind) {
    case AXIS_LINEAR: make_linear(axis, snug, whole); break;
    case AXIS_DECADES: make_decades(axis); break;
    case AXIS_POWERS_OF_TWO: make_powers_of_two(axis); break;
    }
}
