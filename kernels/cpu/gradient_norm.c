#include <math.h>

#include "kernels/cpu/cpu.h"

/* Squares are summed in fp64: an fp32 sum would lose digits over 10^8 elements, and would
 * overflow on large gradients that are still finite. */
static double block_squares(const struct tensor *gradients, int64_t first, int64_t count,
                            float unscale) {
    float buffer[CPU_BLOCK];
    double total = 0;
    for (int64_t at = first; at < first + count; at += CPU_BLOCK) {
        int64_t n = block_length(at, first + count, CPU_BLOCK);
        const float *g = dtype_widen(buffer, gradients->data, gradients->dtype, at, n);
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) {
            float value = g[i] * unscale;
            sum += (double)value * value;
        }
        total += sum;
    }
    return total;
}

void cpu_gradient_squares(struct backend *be, const struct gradient_squares_args *args) {
    int64_t count = tensor_count(args->gradients), blocks = backend_squares(be, args->gradients);
    float unscale = (float)(1.0 / (double)args->state->loss_scale);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * CPU_FLAT_BLOCK;
        args->squares[block] = block_squares(args->gradients, first,
                                             block_length(first, count, CPU_FLAT_BLOCK), unscale);
    }
}

void cpu_gradient_norm(struct backend *be, const struct gradient_norm_args *args) {
    (void)be;
    struct step_state *state = args->state;
    double total = 0;
    for (int64_t i = 0; i < args->count; i++) total += args->squares[i];
    state->gradient_norm = (float)sqrt(total);
    state->found_inf = !isfinite(state->gradient_norm);
    float factor = args->grad_clip / (state->gradient_norm + 1e-6f);
    state->clip_factor = args->grad_clip > 0 && factor < 1 ? factor : 1;
}
