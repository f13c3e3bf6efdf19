#include "model/core/rope.h"

#include <math.h>

static const double turn = 6.283185307179586; /* 2 pi */

/* Scales a frequency as Llama 3.1 does: high frequencies are unchanged, low ones are divided by
 * rope_factor, and those between are interpolated. */
static float scale_llama3(float frequency, const struct model_shape *s) {
    double positions = (double)s->rope_original_positions;
    double waves = positions * (double)frequency / turn; /* periods in the original context */
    double slow = (double)frequency / s->rope_factor;
    if (waves < s->rope_low_freq_factor) return (float)slow;
    if (waves > s->rope_high_freq_factor) return frequency;
    double blend =
        (waves - s->rope_low_freq_factor) / (s->rope_high_freq_factor - s->rope_low_freq_factor);
    return (float)((1 - blend) * slow + blend * (double)frequency);
}

/* Returns the index of the pair, not rounded, that turns so many times in the original context. */
static double pair_of_turns(const struct model_shape *s, double turns) {
    double positions = (double)s->rope_original_positions;
    return (double)s->head_dim * log(positions / (turns * turn)) / (2 * log(s->rope_theta));
}

/* Scales a frequency, the reciprocal of `period`, as yarn does: pairs up to that of rope_beta_fast
 * are unchanged, those from that of rope_beta_slow on are divided by rope_factor, and those between
 * are interpolated. */
static float scale_yarn(float period, const struct model_shape *s, int64_t pair) {
    double first = pair_of_turns(s, s->rope_beta_fast), last = pair_of_turns(s, s->rope_beta_slow);
    if (s->rope_truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, (double)s->head_dim - 1);
    if (first == last) last += 0.001;
    float ramp = ((float)pair - (float)first) / (float)(last - first);
    float unscaled = 1 - fminf(fmaxf(ramp, 0), 1);
    return 1 / ((float)s->rope_factor * period) * (1 - unscaled) + 1 / period * unscaled;
}

/* Returns the base, which dynamic scaling raises for contexts beyond the original one. */
static float base_for(const struct model_shape *s, int64_t length) {
    float base = (float)s->rope_theta, size = (float)s->head_dim;
    if (s->rope_scaling != ROPE_DYNAMIC || length <= s->rope_original_positions) return base;
    float longer = (float)s->rope_factor * (float)length / (float)s->rope_original_positions;
    return base * powf(longer - (float)(s->rope_factor - 1), size / (size - 2));
}

float rope_frequency(const struct model_shape *shape, int64_t pair, int64_t length) {
    float exponent = (float)(2 * pair) / (float)shape_rotary(shape);
    float period = powf(base_for(shape, length), exponent), frequency = 1.0f / period;
    if (shape->rope_scaling == ROPE_LINEAR) return frequency / (float)shape->rope_factor;
    if (shape->rope_scaling == ROPE_YARN) return scale_yarn(period, shape, pair);
    return shape->rope_scaling == ROPE_LLAMA3 ? scale_llama3(frequency, shape) : frequency;
}

double rope_attention_factor(const struct model_shape *shape) {
    if (shape->rope_scaling != ROPE_YARN) return 1;
    double given = shape->rope_attention_factor;
    return given > 0 ? given : 0.1 * log(shape->rope_factor) + 1;
}

void rope_angles(float *angles, const struct model_shape *shape, int64_t length) {
    int64_t size = shape_rotary(shape), half = size / 2;
    int64_t context = length < shape->n_positions ? length : shape->n_positions;
    float factor = (float)rope_attention_factor(shape);
    for (int64_t j = 0; j < half; j++) {
        float frequency = rope_frequency(shape, j, context);
        for (int64_t t = 0; t < length; t++) {
            float angle = (float)t * frequency;
            angles[t * size + j] = cosf(angle) * factor;
            angles[t * size + half + j] = sinf(angle) * factor;
        }
    }
}

void rope_scale_queries(float *angles, const struct model_shape *s, int64_t length) {
    const int64_t size = shape_rotary(s);
    for (int64_t t = 0; t < length; t++) {
        const double turns = floor((double)t / (double)s->rope_original_positions);
        const float scale = (float)(1 + s->query_scaling_beta * log(1 + turns));
        for (int64_t j = 0; j < size; j++) angles[t * size + j] *= scale;
    }
}
