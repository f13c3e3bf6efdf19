/* Constants of the operation hadamard (kernels/quantize_args.h), for both backends. */
#pragma once

#include <stdint.h>

#include "kernels/host_device.h"

enum { HADAMARD_SIZE = 16 };

/* Returns the factor of element k before sums and differences: its sign over the root of the
 * size, so that the transform is orthogonal. */
static ON_HOST_AND_DEVICE float hadamard_factor(uint32_t signs, int k) {
    return signs >> k & 1 ? -0.25f : 0.25f;
}
