/* Soft cap of an attention score in fp64, with the uncertainty of an fp32 result. */
#pragma once

#include <math.h>

/* A score after its soft cap, if there is one, and the derivative by the score before it; sizes are
 * multiplied by the tolerance. */
struct capped {
    double score, size, slope, slope_size;
};

/* A tanh t is within 2.6 ulp, or 5.2 u of itself, for which the tolerance of 4 u allows with 1.3 t.
 * The slope 1 - t^2 is then off by 2 t times as much. cap 0: none. */
static inline struct capped soft_capped(double score, double size, double cap) {
    if (cap == 0) return (struct capped){score, size, 1, 0};
    double t = tanh(score / cap), slope = 1 - t * t;
    return (struct capped){cap * t, slope * size + 1.3 * fabs(cap * t), slope, 2.6 * t * t};
}
