/* Merging of adapters into the weights of their model, a piece of a tensor at a time. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "model/architecture/parameters.h"
#include "model/io/tensor_files.h"

/* The adapter of one linear layer. */
struct merged_layer {
    float scale;                 /* set by the caller, */
    bool out_in;                 /* as is the layout of weights: struct model_shape */
    const struct parameter *of;  /* the weight that a and b belong to, or NULL */
    int64_t rank, rows, columns; /* sizes of the weight */
    float *a, *b;                /* [rank, inputs], [outputs, rank]; NULL: it has no adapter */
};

/* Reads the adapter of a weight, if it has one, unless it is the one that was read last. `list` has
 * the parameters of the adapters, whose files passed the check. */
int merged_layer_load(struct merged_layer *layer, const struct parameter *list,
                      const struct tensor_files *files, const struct parameter *weight,
                      struct error *error);
void merged_layer_close(struct merged_layer *layer);

/* values += scale B A (transposed if the weight is [in, out]), for elements first .. first + count
 * of the weight. */
void merged_layer_add(const struct merged_layer *layer, float *values, int64_t first,
                      int64_t count);
