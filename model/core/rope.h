/* Angles of rotary position embedding (Su et al. 2021), computed as transformers does: frequencies
 * and their products with positions are fp32. */
#pragma once

#include "model/architecture/parameters.h"

/* Returns the angle between neighbouring positions of the pair of this index, 0 .. D/2 - 1, of a
 * head. */
float rope_frequency(const struct gpt_shape *shape, int64_t pair);

/* Fills angles [length, D] with the cosines and sines of positions 0..length-1, in the layout of
 * struct rope_args. Reads head_dim and the rope_ parts of the shape. */
void rope_angles(float *angles, const struct gpt_shape *shape, int64_t length);
