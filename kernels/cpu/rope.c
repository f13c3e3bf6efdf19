#include <assert.h>

#include "kernels/cpu/heads.h"

static void rotate_neighbours(float *x, const float *angles, int64_t size, float sign) {
    for (int64_t j = 0; j < size / 2; j++) {
        float low = x[2 * j], high = x[2 * j + 1], sine = sign * angles[size / 2 + j];
        x[2 * j] = low * angles[j] - high * sine;
        x[2 * j + 1] = high * angles[j] + low * sine;
    }
}

void cpu_rope(struct backend *be, const struct rope_args *args) {
    (void)be;
    const struct tensor *x = args->inout;
    int64_t rows = tensor_rows(x), size = tensor_columns(args->angles), all = args->heads;
    const int64_t head = args->head_dim ? args->head_dim : size;
    float sign = args->inverse ? -1.0f : 1.0f;
    assert(size % 2 == 0 && size <= head && head <= CPU_BLOCK && all * head <= tensor_columns(x));
    assert(args->angles->dtype == DTYPE_F32 && (!args->query_angles || args->query_heads > 0));
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float *angles = angles_of(args->angles, args->positions, row, args->sequence_length);
        const float *query_angles =
            args->query_angles
                ? angles_of(args->query_angles, args->positions, row, args->sequence_length)
                : angles;
        struct heads heads;
        for (int64_t first = 0; first < all; first += heads.count) {
            heads_read(&heads, x, row, first, all, head);
            for (int64_t i = 0; i < heads.count; i++) {
                const float *own = first + i < args->query_heads ? query_angles : angles;
                if (args->neighbours) rotate_neighbours(heads.values + i * head, own, size, sign);
                else head_rotate(heads.values + i * head, own, size, sign);
            }
            heads_write(&heads, x);
        }
    }
}
