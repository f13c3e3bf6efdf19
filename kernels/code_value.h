/* Values of the codes in which weights and their scales are stored, beside those of
 * kernels/float8.h.
 *
 * NF4: 16 quantiles of a normal distribution, scaled to -1 .. 1 (Dettmers et al. 2023).
 *
 * DYNAMIC8: codes 128 .. 254 are the positive numbers p = 1 .. 127, codes 126 .. 0 their negatives,
 * code 127 is 0 and code 255 is 1. The leading bit of p is the exponent, so that smaller values
 * have fewer bits of fraction: p = 2^i + k is the centre of the k-th of 2^i intervals that divide
 * 0.1 .. 1, times 10^(i - 6) (Dettmers et al. 2022). */
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/dtype_list.h"
#include "kernels/host_device.h"

#define NF4_VALUES                                                                                \
    {                                                                                             \
        -1.0f, -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, \
            0.0f, 0.0795803f, 0.1609302f, 0.2461123f, 0.33791524f, 0.44070983f, 0.562617f,        \
            0.72295684f, 1.0f                                                                     \
    }

/* Returns the k-th of `parts` + 1 points from 0.1 to 1, counted from the nearer end. */
static ON_HOST_AND_DEVICE float dynamic8_point(int k, int parts) {
    const float step = (1.0f - 0.1f) / (float)parts;
    return k < (parts + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(parts - k), 1.0f);
}

static ON_HOST_AND_DEVICE float dynamic8_value(uint32_t code) {
    const float powers[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    int p = code < 127 ? 127 - (int)code : (int)code - 127, i = 0;
    if (p == 0) return 0;
    if (p == 128) return 1;
    while (p >> i > 1) i++;
    int k = p - (1 << i);
    float centre = (dynamic8_point(k, 1 << i) + dynamic8_point(k + 1, 1 << i)) / 2;
    return (code < 127 ? -1.0f : 1.0f) * (powers[i] * centre);
}
