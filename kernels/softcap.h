/* The derivative of the operation softcap (kernels/kernels.h), for both backends. */
#pragma once

#include "kernels/host_device.h"

/* Returns 1 - (y / cap)^2, the derivative where the result is y, given 1 / cap. */
static ON_HOST_AND_DEVICE float softcap_slope(float y, float inverse_cap) {
    const float t = y * inverse_cap;
    return 1.0f - t * t;
}
