/* The masters of a model as one array of fp32, whatever form they have. */
#pragma once

#include <stdlib.h>

#include "model/core/gpt.h"

/* To be freed. */
static inline float *masters_values(const struct gpt *gpt) {
    float *values = malloc((size_t)gpt->count * sizeof *values);
    masters_download(&gpt->masters, gpt->be, values, 0, gpt->count);
    return values;
}

static inline void masters_put(struct gpt *gpt, const float *values) {
    masters_upload(&gpt->masters, gpt->be, values, 0, gpt->count);
    masters_refresh(&gpt->masters, gpt->be);
}
