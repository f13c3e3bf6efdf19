#include "kernels/cpu/cpu.h"

/* Returns the largest amax of a tensor over all ranks in this step. */
static float largest(const struct quantize_history_args *args, int64_t i) {
    float amax = 0;
    for (int64_t rank = 0; rank < args->ranks; rank++) {
        float one = args->records[rank * args->each + i].amax;
        if (one > amax) amax = one;
    }
    return amax;
}

void cpu_quantize_history(struct backend *be, const struct quantize_history_args *args) {
    (void)be;
    args->state->quantized_not_finite = args->state->quantized_zero = 0;
    for (int64_t rank = 0; rank < args->ranks; rank++)
        for (int64_t i = 0; i < args->count; i++) {
            const struct quantize_record *record = &args->records[rank * args->each + i];
            args->state->quantized_not_finite += record->not_finite;
            args->state->quantized_zero += record->zero;
        }
    if (!args->history) return;
    float *seen = args->history + args->inputs->step % args->length * args->count;
    for (int64_t i = 0; i < args->count; i++) {
        float amax = 0;
        seen[i] = largest(args, i);
        for (int64_t row = 0; row < args->length; row++) {
            float one = args->history[row * args->count + i];
            if (one > amax) amax = one;
        }
        args->amax[i] = amax * args->margin;
    }
}
