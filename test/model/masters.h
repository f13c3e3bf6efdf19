/* The masters of a model as one array of fp32, whatever form they have. */
#pragma once

#include <stdlib.h>

#include "model/core/model.h"

/* To be freed. */
static inline float *masters_values(const struct model *model) {
    float *values = malloc((size_t)model->count * sizeof *values);
    masters_download(&model->masters, model->be, values, 0, model->count);
    return values;
}

static inline void masters_put(struct model *model, const float *values) {
    masters_upload(&model->masters, model->be, values, 0, model->count);
    masters_refresh(&model->masters, model->be);
}
