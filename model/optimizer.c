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

/* What is offloaded passes through two windows of device memory, which take turns. */
static void carve(struct optimizer *optimizer, struct arena *arena, struct arena *host) {
    const struct gpt *gpt = optimizer->gpt;
    enum dtype dtype = gpt->precision.moments;
    for (int moment = 0; moment < 2; moment++)
        optimizer->moments[moment] =
            arena_tensor(gpt->offload ? host : arena, dtype, gpt->count, 0);
    if (!gpt->offload) return;
    int64_t count = optimizer->window_count;
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        struct optimizer_window *window = &optimizer->windows[slot];
        for (int moment = 0; moment < 2; moment++)
            window->moments[moment] = arena_tensor(arena, dtype, count, 0);
        window->remainder = arena_take(arena, (size_t)count * sizeof *window->remainder);
    }
}

int optimizer_open(struct optimizer *optimizer, struct gpt *gpt, const struct config *config,
                   struct error *error) {
    struct arena measure = {0}, host = {0};
    int64_t window = gpt->be->device.window_count;
    *optimizer = (struct optimizer){
        .gpt = gpt, .config = config, .window_count = window < gpt->count ? window : gpt->count};
    carve(optimizer, &measure, &host);
    gpt->memory.moments = measure.used;
    gpt->memory.total += measure.used;
    gpt->memory.host += optimizer->host_bytes = host.used;
    optimizer->state = backend_allocate(gpt->be, sizeof *optimizer->state);
    return optimizer->state ? 0 : fail(error, "out of memory");
}

int optimizer_allocate(struct optimizer *optimizer, struct error *error) {
    struct backend *be = optimizer->gpt->be;
    size_t bytes = optimizer->gpt->memory.moments, host_bytes = optimizer->host_bytes;
    optimizer->memory = backend_allocate(be, bytes);
    if (!optimizer->memory)
        return fail(error,
                    "out of memory: the optimizer's moments need %zu MiB\nchoose a smaller model",
                    bytes >> 20);
    if (host_bytes) {
        optimizer->host_memory = backend_host_allocate(be, host_bytes);
        if (!optimizer->host_memory)
            return fail(error,
                        "out of memory of the host: the optimizer's moments need %zu MiB there\n"
                        "leave out offload.optimizer, or choose a smaller model",
                        host_bytes >> 20);
        memset(optimizer->host_memory, 0, host_bytes);
    }
    carve(optimizer, &(struct arena){optimizer->memory, 0, bytes},
          &(struct arena){optimizer->host_memory, 0, host_bytes});
    OP(be, clear, .data = optimizer->memory, .bytes = bytes);
    return 0;
}

void optimizer_close(struct optimizer *optimizer) {
    if (!optimizer->gpt) return;
    struct backend *be = optimizer->gpt->be;
    if (optimizer->host_memory) {
        backend_stored(be);
        backend_host_release(be, optimizer->host_memory);
    }
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
    struct backend *be = optimizer->gpt->be;
    const void *from = moment_at(optimizer, moment, first);
    size_t bytes = (size_t)count * dtype_bytes(optimizer->moments[moment].dtype);
    if (optimizer->gpt->offload) {
        backend_stored(be);
        memcpy(values, from, bytes);
    } else backend_download(be, values, from, bytes);
}

void optimizer_upload(struct optimizer *optimizer, int moment, const float *values, int64_t first,
                      int64_t count) {
    enum { PIECE = 8192 };
    float stored[PIECE];
    struct backend *be = optimizer->gpt->be;
    enum dtype dtype = optimizer->moments[moment].dtype;
    if (optimizer->gpt->offload) backend_stored(be);
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE;
        size_t bytes = (size_t)n * dtype_bytes(dtype);
        void *to = moment_at(optimizer, moment, first + done);
        dtype_store(stored, dtype, 0, values + done, (size_t)n);
        if (optimizer->gpt->offload) memcpy(to, stored, bytes);
        else backend_upload(be, to, stored, bytes);
    }
}

/* A part of a group, with the state that belongs to it. */
struct part {
    const struct master_group *group;
    int64_t first, count; /* in the group */
    struct tensor moments[2];
    int16_t *remainder;
};

static void update(struct optimizer *optimizer, const struct part *part, int64_t step) {
    struct gpt *gpt = optimizer->gpt;
    const struct config *config = optimizer->config;
    const struct master_group *group = part->group;
    int64_t at = group->first + part->first;
    struct tensor master = tensor_range(&group->master, part->first, part->count);
    struct tensor copy = tensor_range(&group->copy, part->first, part->count);
    struct tensor gradients = tensor_range(&gpt->gradients, at, part->count);
    OP(gpt->be, adamw, .master = &master, .remainder = part->remainder,
       .moment1 = &part->moments[0], .moment2 = &part->moments[1],
       .copy = group->form == MASTERS_KEPT ? &copy : NULL, .gradients = &gradients,
       .state = optimizer->state, .key = rounding_key((uint64_t)config->seed, step), .first = at,
       .lr = schedule_lr(config, step), .beta1 = config->optimizer.beta1,
       .beta2 = config->optimizer.beta2, .epsilon = config->optimizer.eps,
       .weight_decay = group->decay ? config->optimizer.weight_decay : 0);
}

static void update_in_place(struct optimizer *optimizer, const struct master_group *group,
                            int64_t step) {
    struct part part = {group, 0, group->count, .remainder = group->remainder};
    for (int moment = 0; moment < 2; moment++)
        part.moments[moment] =
            tensor_range(&optimizer->moments[moment], group->first, group->count);
    update(optimizer, &part, step);
}

/* A part of a group in a window: what has to come and go. Returns how many transfers that are. */
static int transfers_of(struct transfer transfers[3], const struct optimizer *optimizer,
                        const struct part *part) {
    const struct master_group *group = part->group;
    for (int moment = 0; moment < 2; moment++) {
        void *host = moment_at(optimizer, moment, group->first + part->first);
        size_t bytes = tensor_bytes(&part->moments[moment]);
        transfers[moment] = (struct transfer){part->moments[moment].data, host, bytes};
    }
    if (!group->offloaded) return 2;
    size_t bytes = (size_t)part->count * sizeof *part->remainder;
    transfers[2] = (struct transfer){part->remainder, group->remainder + part->first, bytes};
    return 3;
}

/* *slot goes on from group to group and begins anew with each step: so a part of the state passes
 * through the same window each time. */
static void update_in_windows(struct optimizer *optimizer, const struct master_group *group,
                              int64_t step, int *slot) {
    struct backend *be = optimizer->gpt->be;
    int64_t most = optimizer->window_count;
    for (int64_t first = 0; first < group->count; first += most) {
        int64_t left = group->count - first, count = left < most ? left : most;
        const struct optimizer_window *window = &optimizer->windows[*slot];
        struct part part = {group, first, count, .remainder = NULL};
        struct transfer transfers[3];
        for (int moment = 0; moment < 2; moment++)
            part.moments[moment] = tensor_range(&window->moments[moment], 0, count);
        if (group->remainder)
            part.remainder = group->offloaded ? window->remainder : group->remainder + first;
        int moved = backend_plans(be) ? 0 : transfers_of(transfers, optimizer, &part);
        if (moved) backend_load(be, *slot, transfers, moved);
        update(optimizer, &part, step);
        if (moved) backend_store(be, *slot, transfers, moved);
        *slot = (*slot + 1) % BACKEND_SLOTS;
    }
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
    int slot = 0;
    for (ptrdiff_t i = 0; i < arrlen(gpt->masters.groups); i++) {
        const struct master_group *group = &gpt->masters.groups[i];
        if (gpt->offload) update_in_windows(optimizer, group, step, &slot);
        else update_in_place(optimizer, group, step);
    }
    OP(gpt->be, loss_scale_update, .state = optimizer->state, .dynamic = gpt->precision.scale_loss,
       .growth_factor = (float)config->loss_scale.growth_factor,
       .backoff_factor = (float)config->loss_scale.backoff_factor,
       .min_scale = (float)config->loss_scale.min_scale,
       .growth_interval = (int32_t)config->loss_scale.growth_interval);
}
