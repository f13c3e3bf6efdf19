/* gelu and its derivative of one value, by the formula in kernels/kernels.h. */
#pragma once

#include "kernels/cpu/vector.h"

static const float SQRT_2_OVER_PI = 0.7978845608028654f;

static inline float gelu(float x) {
    float inner = SQRT_2_OVER_PI * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanh_f32(inner));
}

static inline float gelu_derivative(float x) {
    float inner = SQRT_2_OVER_PI * (x + 0.044715f * x * x * x);
    float slope = SQRT_2_OVER_PI * (1.0f + 3 * 0.044715f * x * x);
    float t = tanh_f32(inner);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope;
}
