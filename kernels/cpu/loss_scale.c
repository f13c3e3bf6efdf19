#include <math.h>

#include "kernels/cpu/cpu.h"

/* The rule of PyTorch's GradScaler, with a floor. */
void cpu_loss_scale_update(struct backend *be, const struct loss_scale_update_args *args) {
    (void)be;
    struct step_state *state = args->state;
    if (state->found_inf) {
        state->skipped++;
        state->skipped_in_row++;
        state->growth_tracker = 0;
        if (!args->dynamic) return;
        if (state->loss_scale <= args->min_scale) state->at_floor++;
        state->loss_scale = fmaxf(state->loss_scale * args->backoff_factor, args->min_scale);
        return;
    }
    state->updates++;
    state->skipped_in_row = state->at_floor = 0;
    if (!args->dynamic || ++state->growth_tracker < args->growth_interval) return;
    state->growth_tracker = 0;
    float grown = state->loss_scale * args->growth_factor;
    if (isfinite(grown)) state->loss_scale = grown;
}
