/* gelu and its derivative of one value, for use in kernels.
 *
 * With z = sqrt(2/pi) (x + 0.044715 x^3), (1 + tanh z) / 2 is the logistic function of 2 z:
 *
 *     gelu(x)  = x s,                     s = 1 / (1 + e),  e = exp(-2 z)
 *     gelu'(x) = s + 2 x z'(x) s (1 - s),  1 - s = e s
 *
 * This takes one exponential and one reciprocal, both hardware approximations. They lose no
 * accuracy: for negative x nothing cancels as it does in 1 + tanh z, and where s is near 1 its
 * relative error is (1 - s) times that of e. The reason is bandwidth: a bf16 pass over memory
 * leaves an H200 about 24 instructions per value, and tanhf alone takes more. */
#pragma once

#include "kernels/cuda/ptx.h"

/* -2 z = x (a + b x^2) in units of ln 2: a = -2 log2(e) sqrt(2/pi), b = 0.044715 a;
 * 2 z'(x) = c + d x^2: c = 2 sqrt(2/pi), d = 3 * 0.044715 c. */
static constexpr float GELU_A = -2.302208198f, GELU_B = -0.1029432397f;
static constexpr float GELU_C = 1.595769122f, GELU_D = 0.2140644488f;

/* Outside fp32's range the exponential is inf and s is 0, or it is 0 and s is 1, without special
 * cases. NaN stays NaN. */
static __device__ __forceinline__ float gelu(float x) {
    float e = exp2_approx(x * (GELU_A + GELU_B * x * x));
    return x * reciprocal_approx(1.0f + e);
}

static __device__ __forceinline__ float gelu_derivative(float x) {
    float square = x * x;
    float e = exp2_approx(x * (GELU_A + GELU_B * square));
    float s = reciprocal_approx(1.0f + e);
    /* The limit avoids inf * 0 where s, and so the product, is 0. */
    float bell = s * (fminf(e, 0x1p126f) * s);
    return s + x * bell * (GELU_C + GELU_D * square);
}
