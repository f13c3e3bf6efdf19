#include "kernels/tensor.h"

#include <assert.h>

int64_t tensor_count(const struct tensor *tensor) {
    int64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    return count;
}

size_t tensor_bytes(const struct tensor *tensor) {
    return dtype_size(tensor->dtype, tensor_count(tensor));
}

int64_t tensor_columns(const struct tensor *tensor) {
    return tensor->rank > 0 ? tensor->shape[tensor->rank - 1] : 1;
}

int64_t tensor_rows(const struct tensor *tensor) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < tensor->rank; i++) rows *= tensor->shape[i];
    return rows;
}

struct tensor tensor_slice(const struct tensor *tensor, int64_t first, int64_t rows) {
    int64_t columns = tensor_columns(tensor);
    assert(first >= 0 && first + rows <= tensor_rows(tensor));
    struct tensor slice = tensor_view(tensor, rows, columns);
    if (tensor->data)
        slice.data = (char *)tensor->data + dtype_size(tensor->dtype, first * columns);
    return slice;
}

struct tensor tensor_range(const struct tensor *tensor, int64_t first, int64_t count) {
    struct tensor range = {NULL, tensor->dtype, 1, {count}};
    if (tensor->data) range.data = (char *)tensor->data + dtype_size(tensor->dtype, first);
    return range;
}

struct tensor tensor_view(const struct tensor *tensor, int64_t rows, int64_t columns) {
    assert(rows * columns <= tensor_count(tensor));
    return (struct tensor){tensor->data, tensor->dtype, 2, {rows, columns}};
}

struct tensor tensor_split(const struct tensor *tensor, int64_t first, int64_t second) {
    int64_t columns = tensor_columns(tensor);
    assert(first * second == tensor_rows(tensor));
    return (struct tensor){tensor->data, tensor->dtype, 3, {first, second, columns}};
}
