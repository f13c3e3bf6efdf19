/* The logistic function and its integral, for both backends. */
#pragma once

#include <math.h>

#include "kernels/host_device.h"

/* log(1 + e^x), which is -log logistic(-x). */
static ON_HOST_AND_DEVICE float softplus(float x) {
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

static ON_HOST_AND_DEVICE float sigmoid(float x) {
    const float e = expf(-fabsf(x));
    return (x >= 0 ? 1.0f : e) / (1 + e);
}
