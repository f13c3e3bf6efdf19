#include "model/optimizer.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/random.h"
#include "model/schedule.h"

/* The partial sums of the norm lie in the workspace from one operation to the next. */
#define X(name) SCRATCH_OF_##name = 0,
#define S(name) SCRATCH_OF_##name = 1,
enum { OPERATIONS_BY_SCRATCH(X, S) };
#undef X
#undef S
_Static_assert(!SCRATCH_OF_gradient_squares && !SCRATCH_OF_gradient_norm, "they would be lost");

/* Keyed by the step, so that a run gives the same bits with or without a resume in between. */
static struct rounding_key rounding_key(uint64_t seed, int64_t step) {
    enum { STREAM = 0x6d6f6d }; /* of these bits among all uses of the seed */
    uint64_t bits = random_bits(seed, STREAM, (uint64_t)step);
    return (struct rounding_key){(uint32_t)bits, (uint32_t)(bits >> 32)};
}

static void carve(struct optimizer *optimizer, struct arena *arena) {
    const struct gpt *gpt = optimizer->gpt;
    for (int moment = 0; moment < 2; moment++)
        optimizer->moments[moment] = arena_tensor(arena, gpt->precision.moments, gpt->count, 0);
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

static char *moment_at(const struct optimizer *optimizer, int moment, int64_t first) {
    const struct tensor *tensor = &optimizer->moments[moment];
    return (char *)tensor->data + (size_t)first * dtype_bytes(tensor->dtype);
}

void optimizer_download(const struct optimizer *optimizer, int moment, void *values, int64_t first,
                        int64_t count) {
    size_t bytes = (size_t)count * dtype_bytes(optimizer->moments[moment].dtype);
    backend_download(optimizer->gpt->be, values, moment_at(optimizer, moment, first), bytes);
}

void optimizer_upload(struct optimizer *optimizer, int moment, const float *values, int64_t first,
                      int64_t count) {
    enum { PIECE = 8192 };
    float stored[PIECE];
    enum dtype dtype = optimizer->moments[moment].dtype;
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE;
        dtype_store(stored, dtype, 0, values + done, (size_t)n);
        backend_upload(optimizer->gpt->be, moment_at(optimizer, moment, first + done), stored,
                       (size_t)n * dtype_bytes(dtype));
    }
}

static void update(struct optimizer *optimizer, const struct master_group *group, int64_t step) {
    struct gpt *gpt = optimizer->gpt;
    const struct config *config = optimizer->config;
    struct tensor moment1 = tensor_range(&optimizer->moments[0], group->first, group->count);
    struct tensor moment2 = tensor_range(&optimizer->moments[1], group->first, group->count);
    struct tensor gradients = tensor_range(&gpt->gradients, group->first, group->count);
    OP(gpt->be, adamw, .master = &group->master, .remainder = group->remainder, .moment1 = &moment1,
       .moment2 = &moment2, .copy = group->form == MASTERS_KEPT ? &group->copy : NULL,
       .gradients = &gradients, .state = optimizer->state,
       .key = rounding_key((uint64_t)config->seed, step), .first = group->first,
       .lr = schedule_lr(config, step), .beta1 = config->optimizer.beta1,
       .beta2 = config->optimizer.beta2, .epsilon = config->optimizer.eps,
       .weight_decay = group->decay ? config->optimizer.weight_decay : 0);
}

void optimizer_step(struct optimizer *optimizer, int64_t step) {
    struct gpt *gpt = optimizer->gpt;
    const struct config *config = optimizer->config;
    int64_t count = backend_squares(gpt->be, &gpt->gradients);
    double *squares = backend_workspace(gpt->be, (size_t)count * sizeof *squares);
    OP(gpt->be, gradient_squares, .squares = squares, .gradients = &gpt->gradients,
       .state = optimizer->state);
    OP(gpt->be, gradient_norm, .state = optimizer->state, .squares = squares, .count = count,
       .grad_clip = (float)config->optimizer.grad_clip);
    for (ptrdiff_t i = 0; i < arrlen(gpt->masters.groups); i++)
        update(optimizer, &gpt->masters.groups[i], step);
    OP(gpt->be, loss_scale_update, .state = optimizer->state, .dynamic = gpt->precision.scale_loss,
       .growth_factor = (float)config->loss_scale.growth_factor,
       .backoff_factor = (float)config->loss_scale.backoff_factor,
       .min_scale = (float)config->loss_scale.min_scale,
       .growth_interval = (int32_t)config->loss_scale.growth_interval);
}
