/* Values of stored weights, for operations that read them in pieces. */
#pragma once

#include "kernels/weight_format.h"

/* A stored matrix with the values of its codes. */
struct stored_values {
    const struct quantized_weight *weight;
    float values[256], scale_values[256];
    int codes; /* number of codes of an element */
};

void stored_values_list(struct stored_values *stored, const struct quantized_weight *weight);

/* Writes elements first .. end - 1 to out, rounded to a dtype of 16 bits or fp32. Of 4-bit codes
 * the first is even. */
void stored_values_write(const struct stored_values *stored, enum dtype dtype, void *out,
                         int64_t first, int64_t end);
