/* Updates the loss scale on the device, so that the host need not wait to find out if a step was
 * skipped. */
#include "kernels/cuda/cuda.h"

#include <float.h>

/* The rule of PyTorch's GradScaler, with a floor. Runs in one thread. */
static __global__ void loss_scale_kernel(struct step_state *state, bool dynamic,
                                         float growth_factor, float backoff_factor, float min_scale,
                                         int32_t growth_interval) {
    if (state->found_inf) {
        state->skipped++;
        state->skipped_in_row++;
        state->growth_tracker = 0;
        if (!dynamic) return;
        if (state->loss_scale <= min_scale) state->at_floor++;
        state->loss_scale = fmaxf(state->loss_scale * backoff_factor, min_scale);
        return;
    }
    state->updates++;
    state->skipped_in_row = state->at_floor = 0;
    if (!dynamic || ++state->growth_tracker < growth_interval) return;
    state->growth_tracker = 0;
    float grown = state->loss_scale * growth_factor;
    if (fabsf(grown) <= FLT_MAX) state->loss_scale = grown;
}

void cuda_loss_scale_update(struct backend *be, const struct loss_scale_update_args *args) {
    LAUNCH(loss_scale_kernel, 1, 1, 0, cuda_state(be)->compute, args->state, args->dynamic,
           args->growth_factor, args->backoff_factor, args->min_scale, args->growth_interval);
    cuda_launched(be, "loss_scale_update");
}
