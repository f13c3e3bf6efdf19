#include <assert.h>

#include "kernels/cpu/heads.h"

void cpu_rope(struct backend *be, const struct rope_args *args) {
    (void)be;
    const struct tensor *x = args->inout;
    int64_t rows = tensor_rows(x), size = tensor_columns(args->angles), all = args->heads;
    float sign = args->inverse ? -1.0f : 1.0f;
    assert(size % 2 == 0 && size <= CPU_BLOCK && all * size <= tensor_columns(x));
    assert(args->angles->dtype == DTYPE_F32);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *angles = angles_of(args->angles, args->positions, row, args->sequence_length);
        struct heads heads;
        for (int64_t first = 0; first < all; first += heads.count) {
            heads_read(&heads, x, row, first, all, size);
            for (int64_t i = 0; i < heads.count; i++)
                head_rotate(heads.values + i * size, angles, size, sign);
            heads_write(&heads, x);
        }
    }
}
