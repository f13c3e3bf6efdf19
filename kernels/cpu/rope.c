#include <assert.h>

#include "kernels/cpu/cpu.h"

void cpu_rope(struct backend *be, const struct rope_args *args) {
    (void)be;
    const struct tensor *x = args->inout;
    int64_t rows = tensor_rows(x), columns = tensor_columns(x), size = tensor_columns(args->angles);
    int64_t half = size / 2, heads = args->heads;
    const float *angles = args->angles->data;
    float sign = args->inverse ? -1.0f : 1.0f;
    assert(size % 2 == 0 && size <= CPU_BLOCK && heads * size <= columns);
    assert(args->angles->dtype == DTYPE_F32);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *cosines = angles + row % args->sequence_length * size, *sines = cosines + half;
        for (int64_t head = 0; head < heads; head++) {
            float buffer[CPU_BLOCK], rotated[CPU_BLOCK];
            int64_t at = row * columns + head * size;
            const float *v = dtype_widen(buffer, x->data, x->dtype, at, size);
#pragma omp simd
            for (int64_t j = 0; j < half; j++) {
                float sine = sign * sines[j];
                rotated[j] = v[j] * cosines[j] - v[j + half] * sine;
                rotated[j + half] = v[j + half] * cosines[j] + v[j] * sine;
            }
            dtype_store(x->data, x->dtype, at, rotated, size);
        }
    }
}
