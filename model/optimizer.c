#include "model/optimizer.h"

#include <string.h>

#include "model/schedule.h"

/* The partial sums of the norm lie in the workspace from one operation to the next. */
#define X(name) SCRATCH_OF_##name = 0,
#define S(name) SCRATCH_OF_##name = 1,
enum { OPERATIONS_BY_SCRATCH(X, S) };
#undef X
#undef S
_Static_assert(!SCRATCH_OF_gradient_squares && !SCRATCH_OF_gradient_norm, "they would be lost");

static void carve(struct optimizer *optimizer, struct arena *arena) {
    optimizer->moment1 = arena_tensor(arena, DTYPE_F32, optimizer->gpt->count, 0);
    optimizer->moment2 = arena_tensor(arena, DTYPE_F32, optimizer->gpt->count, 0);
}

int optimizer_open(struct optimizer *optimizer, struct gpt *gpt, const struct config *config,
                   struct error *error) {
    struct arena measure = {0};
    *optimizer = (struct optimizer){.gpt = gpt, .config = config};
    carve(optimizer, &measure);
    gpt->memory.moments = measure.used;
    gpt->memory.total += measure.used;
    optimizer->state = backend_allocate(gpt->be, sizeof *optimizer->state);
    return optimizer->state ? 0 : fail(error, "out of memory");
}

int optimizer_allocate(struct optimizer *optimizer, struct error *error) {
    struct backend *be = optimizer->gpt->be;
    size_t bytes = optimizer->gpt->memory.moments;
    optimizer->memory = backend_allocate(be, bytes);
    if (!optimizer->memory)
        return fail(error,
                    "out of memory: the optimizer's moments need %zu MiB\nchoose a smaller model",
                    bytes >> 20);
    carve(optimizer, &(struct arena){optimizer->memory, 0, bytes});
    OP(be, clear, .data = optimizer->memory, .bytes = bytes);
    return 0;
}

void optimizer_close(struct optimizer *optimizer) {
    if (!optimizer->gpt) return;
    struct backend *be = optimizer->gpt->be;
    if (optimizer->memory) backend_release(be, optimizer->memory);
    if (optimizer->state) backend_release(be, optimizer->state);
    memset(optimizer, 0, sizeof *optimizer);
}

static void update_group(struct optimizer *optimizer, int64_t first, int64_t count, double lr,
                         double weight_decay) {
    struct gpt *gpt = optimizer->gpt;
    const struct config *config = optimizer->config;
    struct tensor master = tensor_range(&gpt->master, first, count);
    struct tensor moment1 = tensor_range(&optimizer->moment1, first, count);
    struct tensor moment2 = tensor_range(&optimizer->moment2, first, count);
    struct tensor gradients = tensor_range(&gpt->gradients, first, count);
    struct tensor lower = tensor_range(&gpt->lower, first, count);
    bool has_lower = gpt->precision.lower != DTYPE_F32;
    OP(gpt->be, adamw, .master = &master, .moment1 = &moment1, .moment2 = &moment2,
       .lower = has_lower ? &lower : NULL, .gradients = &gradients, .state = optimizer->state,
       .lr = lr, .beta1 = config->optimizer.beta1, .beta2 = config->optimizer.beta2,
       .epsilon = config->optimizer.eps, .weight_decay = weight_decay);
}

void optimizer_step(struct optimizer *optimizer, int64_t step) {
    struct gpt *gpt = optimizer->gpt;
    const struct config *config = optimizer->config;
    double lr = schedule_lr(config, step);
    int64_t count = backend_squares(gpt->be, &gpt->gradients);
    double *squares = backend_workspace(gpt->be, (size_t)count * sizeof *squares);
    OP(gpt->be, gradient_squares, .squares = squares, .gradients = &gpt->gradients,
       .state = optimizer->state);
    OP(gpt->be, gradient_norm, .state = optimizer->state, .squares = squares, .count = count,
       .grad_clip = (float)config->optimizer.grad_clip);
    update_group(optimizer, 0, gpt->decayed, lr, config->optimizer.weight_decay);
    update_group(optimizer, gpt->decayed, gpt->count - gpt->decayed, lr, 0);
    OP(gpt->be, loss_scale_update, .state = optimizer->state, .dynamic = gpt->precision.scale_loss,
       .growth_factor = (float)config->loss_scale.growth_factor,
       .backoff_factor = (float)config->loss_scale.backoff_factor,
       .min_scale = (float)config->loss_scale.min_scale,
       .growth_interval = (int32_t)config->loss_scale.growth_interval);
}
