/* Angles of rotary position embedding (Su et al. 2021) with the scalings of longer contexts,
 * computed as transformers does: frequencies and their products with positions are fp32.
 *   linear   frequencies are divided by rope_factor
 *   dynamic  a larger base, for a context beyond rope_original_positions
 *   yarn     frequencies of columns that turn seldom are divided by rope_factor, and cosines and
 *            sines are multiplied by an attention factor (Peng et al. 2023)
 *   llama3   low frequencies are divided by rope_factor */
#pragma once

#include "model/architecture/parameters.h"

/* Returns the angle between neighbouring positions of the pair of this index, 0 .. D/2 - 1, of a
 * head. length: of the context, which dynamic scaling depends on. */
float rope_frequency(const struct model_shape *shape, int64_t pair, int64_t length);

/* Returns the factor of yarn's cosines and sines; 1 without yarn. */
double rope_attention_factor(const struct model_shape *shape);

/* Fills angles [length, R], R columns of a head, with the cosines and sines of positions
 * 0..length-1, in the layout of struct rope_args. Reads head_dim, partial_rotary_factor,
 * n_positions and the rope_ parts of the shape.
 *
 * Dynamic scaling has one base for the whole table: that of a context of `length` tokens, at most
 * n_positions. That is data.seq_len in training and evaluation, and the longest context in sampling
 * (sample_model_context), so that a run's samples have the base that it was trained with.
 * transformers computes the same for sequences of that length. For shorter ones it takes the base
 * of the longest sequence seen, and cached keys keep the base of their time. */
void rope_angles(float *angles, const struct model_shape *shape, int64_t length);

/* Multiplies angles of all positions by the scale of queries there, which grows with each
 * rope_original_positions: 1 + query_scaling_beta ln(1 + floor(t / rope_original_positions)). */
void rope_scale_queries(float *angles, const struct model_shape *shape, int64_t length);
