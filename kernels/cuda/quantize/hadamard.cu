/* Hadamard transforms of 16 rows. A thread has COLUMNS neighbours of all 16 rows in registers, in
 * which it adds and subtracts. */
#include "kernels/cuda/amax.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/hadamard.h"

enum { THREADS = 128, COLUMNS = 2 };

static __device__ __forceinline__ void transform(float values[HADAMARD_SIZE][COLUMNS]) {
#pragma unroll
    for (int distance = 1; distance < HADAMARD_SIZE; distance *= 2)
#pragma unroll
        for (int k = 0; k < HADAMARD_SIZE; k++)
#pragma unroll
            for (int i = 0; i < COLUMNS; i++) {
                if (k & distance) continue;
                float a = values[k][i], b = values[k + distance][i];
                values[k][i] = __fadd_rn(a, b), values[k + distance][i] = __fsub_rn(a, b);
            }
}

/* PACKED: COLUMNS divides the columns, and addresses are aligned. count: threads of all bands. */
template <bool PACKED, bool TRACKS, typename T>
static __global__ void __launch_bounds__(THREADS)
    hadamard_kernel(__nv_bfloat16 *out, const T *in, int64_t rows, int64_t columns, int64_t count,
                    uint32_t signs, struct amax *track_amax) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t across = (columns + COLUMNS - 1) / COLUMNS;
    int64_t first = i / across * HADAMARD_SIZE, column = i % across * COLUMNS;
    int64_t at = first * columns + column, left = columns - column;
    int here = i < count ? (int)min((int64_t)HADAMARD_SIZE, rows - first) : 0;
    const bool whole = here == HADAMARD_SIZE;
    struct magnitudes own = {0, 0};
    float values[HADAMARD_SIZE][COLUMNS] = {};
#pragma unroll
    for (int k = 0; k < HADAMARD_SIZE; k++)
        if (k < here) load_flat<PACKED, COLUMNS>(values[k], in + at + k * columns, left);
    if (whole) {
#pragma unroll
        for (int k = 0; k < HADAMARD_SIZE; k++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                values[k][c] = __fmul_rn(hadamard_factor(signs, k), values[k][c]);
        transform(values);
    }
#pragma unroll
    for (int k = 0; k < HADAMARD_SIZE; k++) {
        if (k < here) store_flat<PACKED, COLUMNS>(out + at + k * columns, values[k], left);
        if (TRACKS) track_stored<__nv_bfloat16, COLUMNS>(&own, values[k]);
    }
    if (TRACKS) merge_amax(track_amax, own);
}

template <typename T> static void hadamard(struct backend *be, const struct hadamard_args *args) {
    int64_t rows = tensor_rows(args->in), columns = tensor_columns(args->in);
    int64_t count = blocks_of(rows, HADAMARD_SIZE) * blocks_of(columns, COLUMNS);
    __nv_bfloat16 *out = (__nv_bfloat16 *)args->out->data;
    const T *in = (const T *)args->in->data;
    bool packed = columns % COLUMNS == 0 && aligned_to(out, COLUMNS * sizeof *out) &&
                  aligned_to(in, COLUMNS * sizeof *in);
    LAUNCH((packed             ? args->track_amax ? hadamard_kernel<true, true, T>
                                                  : hadamard_kernel<true, false, T>
                        : args->track_amax ? hadamard_kernel<false, true, T>
                               : hadamard_kernel<false, false, T>),
           (unsigned)blocks_of(count, THREADS), THREADS, 0, cuda_state(be)->compute, out, in, rows,
           columns, count, args->signs, args->track_amax);
}

void cuda_hadamard(struct backend *be, const struct hadamard_args *args) {
    assert(tensor_count(args->out) == tensor_count(args->in) && args->out->dtype == DTYPE_BF16);
    if (tensor_count(args->in) == 0) return;
    STORAGE_SWITCH(args->in->dtype, T, hadamard<T>(be, args));
    cuda_launched(be, "hadamard");
}
