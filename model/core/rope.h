/* The angles of rotary position embedding (Su et al. 2021), as transformers computes them: wave
 * lengths and their products with positions in fp32. */
#pragma once

#include "model/architecture/parameters.h"

/* Fills angles [length, D] with cosines and sines of positions 0..length-1, as struct rope_args
 * wants them. Of the shape head_dim and the rope_ parts are read. */
void rope_angles(float *angles, const struct gpt_shape *shape, int64_t length);
