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
    int64_t own = optimizer->exchange.shards.own_count;
    for (int moment = 0; moment < 2; moment++)
        optimizer->moments[moment] = arena_tensor(gpt->offload ? host : arena, dtype, own, 0);
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
    if (gpt->offload && gpt->be->collectives->ranks->size > 1)
        return fail(error, "offload.optimizer: not with several ranks, which divide the moments "
                           "anyway (ranks.shard)\nleave it out");
    int64_t window = gpt->be->device.window_count;
    *optimizer = (struct optimizer){
        .gpt = gpt, .config = config, .window_count = window < gpt->count ? window : gpt->count};
    if (exchange_open(&optimizer->exchange, gpt->be, config, &gpt->precision, gpt->list,
                      &gpt->masters, &gpt->gradients, error))
        return -1;
    if (gpt->be->collectives->ranks->size > 1) gpt->exchange = &optimizer->exchange;
    carve(optimizer, &measure, &host);
    gpt->memory.moments = measure.used;
    gpt->memory.exchange = optimizer->exchange.bytes;
    gpt->memory.host += optimizer->host_bytes = host.used;
    optimizer->state = backend_allocate(gpt->be, sizeof *optimizer->state);
    return optimizer->state ? 0 : fail(error, "out of memory");
}

int optimizer_allocate(struct optimizer *optimizer, struct error *error) {
    struct backend *be = optimizer->gpt->be;
    size_t bytes = optimizer->gpt->memory.moments, host_bytes = optimizer->host_bytes;
    if (exchange_allocate(&optimizer->exchange, error)) return -1;
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
    exchange_close(&optimizer->exchange);
    memset(optimizer, 0, sizeof *optimizer);
}

/* at: in the array of own elements. */
static char *moment_at(const struct optimizer *optimizer, int moment, int64_t at) {
    const struct tensor *tensor = &optimizer->moments[moment];
    return (char *)tensor->data + (size_t)at * dtype_bytes(tensor->dtype);
}

/* What of a range this rank has, in bucket i, and where in the array of own elements. */
static struct rank_part own_part(const struct optimizer *optimizer, ptrdiff_t i, int64_t first,
                                 int64_t count, int64_t *at) {
    const struct shards *shards = &optimizer->exchange.shards;
    const struct ranks *ranks = optimizer->gpt->be->collectives->ranks;
    struct rank_part part = shards_overlap(shards, i, ranks, ranks->rank, first, count);
    *at = shards->buckets[i].place + part.first - shards->buckets[i].own.first;
    return part;
}

static void download(const struct optimizer *optimizer, int moment, void *values, int64_t at,
                     int64_t count) {
    struct backend *be = optimizer->gpt->be;
    const void *from = moment_at(optimizer, moment, at);
    size_t bytes = (size_t)count * dtype_bytes(optimizer->moments[moment].dtype);
    if (optimizer->gpt->offload) {
        backend_stored(be);
        memcpy(values, from, bytes);
    } else backend_download(be, values, from, bytes);
}

void optimizer_download(const struct optimizer *optimizer, int moment, void *values, int64_t first,
                        int64_t count) {
    size_t bytes = dtype_bytes(optimizer->moments[moment].dtype);
    int64_t at;
    for (ptrdiff_t i = 0; i < arrlen(optimizer->exchange.shards.buckets); i++) {
        struct rank_part part = own_part(optimizer, i, first, count, &at);
        char *to = (char *)values + (size_t)(part.first - first) * bytes;
        if (part.count > 0) download(optimizer, moment, to, at, part.count);
    }
}

static void upload(const struct optimizer *optimizer, int moment, const float *values, int64_t at,
                   int64_t count) {
    enum { PIECE = 8192 };
    float stored[PIECE];
    struct backend *be = optimizer->gpt->be;
    enum dtype dtype = optimizer->moments[moment].dtype;
    if (optimizer->gpt->offload) backend_stored(be);
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE;
        size_t bytes = (size_t)n * dtype_bytes(dtype);
        void *to = moment_at(optimizer, moment, at + done);
        dtype_store(stored, dtype, 0, values + done, (size_t)n);
        if (optimizer->gpt->offload) memcpy(to, stored, bytes);
        else backend_upload(be, to, stored, bytes);
    }
}

void optimizer_upload(const struct optimizer *optimizer, int moment, const float *values,
                      int64_t first, int64_t count) {
    int64_t at;
    for (ptrdiff_t i = 0; i < arrlen(optimizer->exchange.shards.buckets); i++) {
        struct rank_part part = own_part(optimizer, i, first, count, &at);
        if (part.count > 0)
            upload(optimizer, moment, values + (part.first - first), at, part.count);
    }
}

/* Some of a rank's own part of a bucket, with the state that belongs to it. */
struct part {
    const struct master_group *group; /* of the bucket */
    int64_t first, count;             /* in the group */
    int64_t at;                       /* in arrays of own elements */
    struct tensor moments[2];
    int16_t *remainder;
};

static void update(struct optimizer *optimizer, const struct part *part, int64_t step) {
    struct gpt *gpt = optimizer->gpt;
    const struct config *config = optimizer->config;
    const struct master_group *group = part->group;
    int64_t flat = group->first + part->first;
    struct tensor master = tensor_range(&group->master, part->first, part->count);
    struct tensor copy = tensor_range(&group->copy, part->first, part->count);
    struct tensor gradients = tensor_range(&gpt->gradients, flat, part->count);
    OP(gpt->be, adamw, .master = &master, .remainder = part->remainder,
       .moment1 = &part->moments[0], .moment2 = &part->moments[1],
       .copy = group->form == MASTERS_KEPT ? &copy : NULL, .gradients = &gradients,
       .state = optimizer->state, .key = rounding_key((uint64_t)config->seed, step), .first = flat,
       .lr = schedule_lr(config, step), .beta1 = config->optimizer.beta1,
       .beta2 = config->optimizer.beta2, .epsilon = config->optimizer.eps,
       .weight_decay = group->decay ? config->optimizer.weight_decay : 0);
}

static void update_in_place(struct optimizer *optimizer, const struct part *own, int64_t step) {
    struct part part = *own;
    if (part.group->remainder) part.remainder = part.group->remainder + part.first;
    for (int moment = 0; moment < 2; moment++)
        part.moments[moment] = tensor_range(&optimizer->moments[moment], part.at, part.count);
    update(optimizer, &part, step);
}

/* A part in a window: what has to come and go. Returns how many transfers that are. */
static int transfers_of(struct transfer transfers[3], const struct optimizer *optimizer,
                        const struct part *part) {
    const struct master_group *group = part->group;
    for (int moment = 0; moment < 2; moment++) {
        void *host = moment_at(optimizer, moment, part->at);
        size_t bytes = tensor_bytes(&part->moments[moment]);
        transfers[moment] = (struct transfer){part->moments[moment].data, host, bytes};
    }
    if (!group->offloaded) return 2;
    size_t bytes = (size_t)part->count * sizeof *part->remainder;
    transfers[2] = (struct transfer){part->remainder, group->remainder + part->first, bytes};
    return 3;
}

/* *slot goes on from bucket to bucket and begins anew with each step: so a part of the state passes
 * through the same window each time. */
static void update_in_windows(struct optimizer *optimizer, const struct part *own, int64_t step,
                              int *slot) {
    struct backend *be = optimizer->gpt->be;
    const struct master_group *group = own->group;
    int64_t most = optimizer->window_count;
    for (int64_t done = 0; done < own->count; done += most) {
        int64_t left = own->count - done, count = left < most ? left : most;
        const struct optimizer_window *window = &optimizer->windows[*slot];
        struct part part = {group, own->first + done, count, own->at + done, .remainder = NULL};
        struct transfer transfers[3];
        for (int moment = 0; moment < 2; moment++)
            part.moments[moment] = tensor_range(&window->moments[moment], 0, count);
        if (group->remainder)
            part.remainder = group->offloaded ? window->remainder : group->remainder + part.first;
        int moved = backend_plans(be) ? 0 : transfers_of(transfers, optimizer, &part);
        if (moved) backend_load(be, *slot, transfers, moved);
        update(optimizer, &part, step);
        if (moved) backend_store(be, *slot, transfers, moved);
        *slot = (*slot + 1) % BACKEND_SLOTS;
    }
}

/* The sums of squares of the gradients in own parts, and from those of all ranks the norm. */
static void find_norm(struct optimizer *optimizer) {
    struct backend *be = optimizer->gpt->be;
    struct exchange *exchange = &optimizer->exchange;
    const struct ranks *ranks = be->collectives->ranks;
    int64_t count = exchange->squares_count;
    size_t bytes = (size_t)count * sizeof(double);
    double *all = ranks->size > 1 ? exchange->squares : backend_workspace(be, bytes);
    double *own = all ? all + ranks->rank * count : NULL;
    struct rank_part run;
    if (ranks->size > 1) OP(be, clear, .data = own, .bytes = bytes);
    for (ptrdiff_t i = 0; shards_run(&run, &i, &exchange->shards, ranks, ranks->rank);) {
        struct tensor gradients = tensor_range(&optimizer->gpt->gradients, run.first, run.count);
        OP(be, gradient_squares, .squares = own, .gradients = &gradients,
           .state = optimizer->state);
        if (own) own += backend_squares(be, &gradients);
    }
    exchange_sums(exchange, &optimizer->state->loss);
    OP(be, gradient_norm, .state = optimizer->state, .squares = all, .count = ranks->size * count,
       .grad_clip = (float)optimizer->config->optimizer.grad_clip);
}

/* In the order in which the next forward pass wants them. */
static void update_all(struct optimizer *optimizer, int64_t step) {
    struct gpt *gpt = optimizer->gpt;
    struct shards *shards = &optimizer->exchange.shards;
    int slot = 0;
    for (ptrdiff_t i = 0; i < arrlen(shards->order); i++) {
        const struct bucket *bucket = &shards->buckets[shards->order[i]];
        const struct master_group *group = &gpt->masters.groups[bucket->group];
        struct part own = {group, bucket->own.first - group->first, bucket->own.count,
                           bucket->place, .remainder = NULL};
        if (own.count > 0 && gpt->offload) update_in_windows(optimizer, &own, step, &slot);
        else if (own.count > 0) update_in_place(optimizer, &own, step);
        exchange_weights(&optimizer->exchange, bucket);
    }
}

void optimizer_step(struct optimizer *optimizer, int64_t step) {
    const struct config *config = optimizer->config;
    struct gpt *gpt = optimizer->gpt;
    exchange_gradients_arrived(&optimizer->exchange);
    find_norm(optimizer);
    update_all(optimizer, step);
    OP(gpt->be, loss_scale_update, .state = optimizer->state, .dynamic = gpt->precision.scale_loss,
       .growth_factor = (float)config->loss_scale.growth_factor,
       .backoff_factor = (float)config->loss_scale.backoff_factor,
       .min_scale = (float)config->loss_scale.min_scale,
       .growth_interval = (int32_t)config->loss_scale.growth_interval);
}
