/* Block-diagonal matrices of a few narrow parts, and the gradients of the parts. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/storage.h"

enum { DIAGONAL_THREADS = 256 };

/* The parts as a kernel reads or writes them. */
template <typename T> struct diagonal_parts {
    T *data[DIAGONAL_BLOCKS_MAX];
    int64_t first_row[DIAGONAL_BLOCKS_MAX], rows[DIAGONAL_BLOCKS_MAX];
    int64_t end[DIAGONAL_BLOCKS_MAX]; /* column after the last of the part */
    int count;
};

template <typename T>
static struct diagonal_parts<T> parts_of(const struct diagonal_block *blocks, int count) {
    struct diagonal_parts<T> parts = {};
    int64_t end = 0;
    parts.count = count;
    for (int i = 0; i < count; i++) {
        end += tensor_columns(&blocks[i].part);
        parts.data[i] = (T *)blocks[i].part.data;
        parts.first_row[i] = blocks[i].first_row;
        parts.rows[i] = tensor_rows(&blocks[i].part);
        parts.end[i] = end;
    }
    return parts;
}

/* Returns the address of the part's element at a place of the matrix, or NULL if no part covers
 * it. */
template <typename T>
static __device__ __forceinline__ T *part_element(const struct diagonal_parts<T> &parts,
                                                  int64_t row, int64_t column) {
    int64_t begin = 0;
    for (int i = 0; i < DIAGONAL_BLOCKS_MAX; i++) {
        if (i >= parts.count) break;
        int64_t at = row - parts.first_row[i], width = parts.end[i] - begin;
        if (column < parts.end[i])
            return at >= 0 && at < parts.rows[i] ? parts.data[i] + at * width + column - begin
                                                 : NULL;
        begin = parts.end[i];
    }
    return NULL;
}

template <typename T>
static __global__ void __launch_bounds__(DIAGONAL_THREADS)
    block_diagonal_forward_kernel(T *__restrict__ out,
                                  const __grid_constant__ struct diagonal_parts<const float> parts,
                                  int64_t count, int64_t columns, float scale) {
    int64_t i = (int64_t)blockIdx.x * DIAGONAL_THREADS + threadIdx.x;
    if (i >= count) return;
    const float *value = part_element(parts, i / columns, i % columns);
    out[i] = narrow<T>(value ? scale * *value : 0.0f);
}

template <typename T>
static __global__ void __launch_bounds__(DIAGONAL_THREADS)
    block_diagonal_backward_kernel(const __grid_constant__ struct diagonal_parts<T> parts,
                                   const float *__restrict__ dout, int64_t count, int64_t columns,
                                   float scale, bool accumulate) {
    int64_t i = (int64_t)blockIdx.x * DIAGONAL_THREADS + threadIdx.x;
    if (i >= count) return;
    T *value = part_element(parts, i / columns, i % columns);
    if (!value) return;
    float gradient = __fmul_rn(scale, dout[i]);
    *value = narrow<T>(accumulate ? __fadd_rn(widen(*value), gradient) : gradient);
}

void cuda_block_diagonal_forward(struct backend *be,
                                 const struct block_diagonal_forward_args *args) {
    int64_t count = tensor_count(args->out);
    if (count == 0) return;
    struct diagonal_parts<const float> parts = parts_of<const float>(args->blocks, args->count);
    STORAGE_SWITCH(args->out->dtype, T,
                   LAUNCH(block_diagonal_forward_kernel<T>,
                          (unsigned)blocks_of(count, DIAGONAL_THREADS), DIAGONAL_THREADS, 0,
                          cuda_state(be)->compute, (T *)args->out->data, parts, count,
                          tensor_columns(args->out), args->scale));
    cuda_launched(be, "block_diagonal_forward");
}

void cuda_block_diagonal_backward(struct backend *be,
                                  const struct block_diagonal_backward_args *args) {
    int64_t count = tensor_count(args->dout);
    if (count == 0) return;
    STORAGE_SWITCH(args->dblocks[0].part.dtype, T,
                   LAUNCH(block_diagonal_backward_kernel<T>,
                          (unsigned)blocks_of(count, DIAGONAL_THREADS), DIAGONAL_THREADS, 0,
                          cuda_state(be)->compute, parts_of<T>(args->dblocks, args->count),
                          (const float *)args->dout->data, count, tensor_columns(args->dout),
                          args->scale, args->accumulate));
    cuda_launched(be, "block_diagonal_backward");
}
