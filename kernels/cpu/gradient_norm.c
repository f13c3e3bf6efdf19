#include <float.h>
#include <math.h>

#include "kernels/cpu/cpu.h"

/* Squares are summed in fp64: an fp32 sum would lose digits over 10^8 elements, and would
 * overflow on large gradients that are still finite. */
static double block_squares(const struct tensor *gradients, int64_t first, int64_t count,
                            float unscale, int *found_inf) {
    float buffer[CPU_BLOCK];
    double total = 0;
    int bad = 0;
    for (int64_t at = first; at < first + count; at += CPU_BLOCK) {
        int64_t n = block_length(at, first + count, CPU_BLOCK);
        const float *g = dtype_widen(buffer, gradients->data, gradients->dtype, at, n);
        double sum = 0;
#pragma omp simd reduction(+ : sum) reduction(| : bad)
        for (int64_t i = 0; i < n; i++) {
            float value = g[i] * unscale;
            bad |= !(fabsf(value) <= FLT_MAX);
            sum += (double)value * value;
        }
        total += sum;
    }
    *found_inf = bad;
    return total;
}

size_t cpu_gradient_norm_scratch(struct backend *be, const struct gradient_norm_args *args) {
    (void)be;
    return (size_t)blocks_of(tensor_count(args->gradients), CPU_FLAT_BLOCK) * sizeof(double);
}

void cpu_gradient_norm(struct backend *be, const struct gradient_norm_args *args) {
    struct step_state *state = args->state;
    int64_t count = tensor_count(args->gradients), blocks = blocks_of(count, CPU_FLAT_BLOCK);
    double *squares = backend_workspace(be, cpu_gradient_norm_scratch(be, args)); /* [blocks] */
    float unscale = (float)(1.0 / (double)state->loss_scale);
    int found_inf = 0;
#pragma omp parallel for schedule(static) reduction(| : found_inf)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * CPU_FLAT_BLOCK;
        int bad = 0;
        squares[block] = block_squares(args->gradients, first,
                                       block_length(first, count, CPU_FLAT_BLOCK), unscale, &bad);
        found_inf |= bad;
    }
    double total = 0;
    for (int64_t block = 0; block < blocks; block++) total += squares[block];
    state->gradient_norm = (float)sqrt(total);
    /* A norm beyond fp32 would clip every gradient to zero. */
    state->found_inf = found_inf || !isfinite(state->gradient_norm);
    float factor = args->grad_clip / (state->gradient_norm + 1e-6f);
    state->clip_factor = args->grad_clip > 0 && factor < 1 ? factor : 1;
}
