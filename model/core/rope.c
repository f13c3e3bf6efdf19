#include "model/core/rope.h"

#include <math.h>

/* Scales a frequency as Llama 3.1 does: high frequencies are unchanged, low ones are divided by
 * rope_factor, and those between are interpolated. */
static float scaled(float frequency, const struct gpt_shape *s) {
    double positions = (double)s->rope_original_positions;
    double waves =
        positions * (double)frequency / 6.283185307179586; /* periods in the original context */
    double slow = (double)frequency / s->rope_factor;
    if (waves < s->rope_low_freq_factor) return (float)slow;
    if (waves > s->rope_high_freq_factor) return frequency;
    double blend =
        (waves - s->rope_low_freq_factor) / (s->rope_high_freq_factor - s->rope_low_freq_factor);
    return (float)((1 - blend) * slow + blend * (double)frequency);
}

float rope_frequency(const struct gpt_shape *shape, int64_t pair) {
    float exponent = (float)(2 * pair) / (float)shape->head_dim;
    float frequency = 1.0f / powf((float)shape->rope_theta, exponent);
    return shape->rope_scaling == ROPE_LLAMA3 ? scaled(frequency, shape) : frequency;
}

void rope_angles(float *angles, const struct gpt_shape *shape, int64_t length) {
    int64_t size = shape->head_dim, half = size / 2;
    for (int64_t j = 0; j < half; j++) {
        float frequency = rope_frequency(shape, j);
        for (int64_t t = 0; t < length; t++) {
            float angle = (float)t * frequency;
            angles[t * size + j] = cosf(angle);
            angles[t * size + half + j] = sinf(angle);
        }
    }
}
