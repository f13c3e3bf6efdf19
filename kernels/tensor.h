/* A tensor is data, dtype, shape: row-major, contiguous, owned by an arena.
 *
 * data is memory of the backend in use (for CUDA: device memory) or NULL while a layout is only
 * measured. rank is the number of dimensions in shape. */
#pragma once

#include <stdint.h>

#include "kernels/dtype.h"

enum { TENSOR_RANK_MAX = 4 };

struct tensor {
    void *data;
    enum dtype dtype;
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
};

int64_t tensor_count(const struct tensor *tensor); /* elements */
size_t tensor_bytes(const struct tensor *tensor);

/* Last dimension, and product of all others: the tensor viewed as rows x columns. */
int64_t tensor_columns(const struct tensor *tensor);
int64_t tensor_rows(const struct tensor *tensor);

/* Returns rows first..first+rows of a tensor viewed as rows x columns: a rank-2 view of the same
 * memory. */
struct tensor tensor_slice(const struct tensor *tensor, int64_t first, int64_t rows);

/* Returns elements first..first+count as a rank-1 view. */
struct tensor tensor_range(const struct tensor *tensor, int64_t first, int64_t count);

/* Returns a view of the same memory with a rank-2 shape; rows * columns must not exceed the
 * tensor's count. */
struct tensor tensor_view(const struct tensor *tensor, int64_t rows, int64_t columns);

/* Returns a tensor viewed as rows x columns with its rows split: [first, second, columns]. */
struct tensor tensor_split(const struct tensor *tensor, int64_t first, int64_t second);
