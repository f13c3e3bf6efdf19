#include "model/optimize/snapshot.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/host_memory.h"
#include "kernels/collectives.h"

static size_t history_bytes(const struct quantization *quantization) {
    if (quantization->history_length == 0) return 0;
    int64_t count = quantization->history_length * quantization_count(quantization);
    return (size_t)count * sizeof *quantization->history;
}

/* Rank 0 writes the weights for all ranks. Each rank writes moments. */
static void lay_out(struct snapshot *snapshot, const struct trainer *trainer, size_t moment_bytes,
                    struct arena *arena) {
    if (trainer->be->collectives->ranks->rank == 0) {
        masters_layout(&snapshot->masters, arena, arena);
        snapshot->history = arena_take(arena, history_bytes(&trainer->model.quantization));
    }
    snapshot->moments = arena_take(arena, moment_bytes);
}

static void open_masters(struct masters *masters, const struct trainer *trainer) {
    const struct model *model = &trainer->model;
    if (trainer->be->collectives->ranks->rank != 0) return;
    masters_open(
        masters, model->list, &model->precision,
        (struct masters_offload){model->offload_optimizer, model->masters.stream.layers > 0});
    masters_drop_frozen(masters);
}

static size_t bytes_of(const struct trainer *trainer, size_t moment_bytes) {
    struct snapshot measured = {0};
    struct arena arena = {0};
    open_masters(&measured.masters, trainer);
    lay_out(&measured, trainer, moment_bytes, &arena);
    masters_close(&measured.masters);
    return arena.used;
}

bool snapshot_wanted(const struct config *config) {
    int64_t every = config->checkpoint.every;
    if (config->checkpoint.keep_best && (every == 0 || config->eval.every < every))
        every = config->eval.every;
    return config->checkpoint.background && every > 0 && every < config->train.steps;
}

/* The plan divides the moments evenly among ranks. Their files have about as much each. */
void snapshot_plan(struct trainer *trainer) {
    struct model *model = &trainer->model;
    size_t bytes =
        shards_moment_bytes(&trainer->optimizer.exchange.shards, model->precision.moments);
    if (snapshot_wanted(trainer->config))
        model->memory.snapshot =
            bytes_of(trainer, bytes / (size_t)trainer->be->collectives->ranks->size);
}

/* First-touch page faults cost more than the copy itself, so a thread touches the pages early. */
static void *touch(void *argument) {
    const struct snapshot *snapshot = argument;
    memset(snapshot->memory, 0, snapshot->bytes);
    return NULL;
}

/* Planned memory that has not been touched yet still counts as available. */
static bool fits_in_memory(const struct trainer *trainer, size_t bytes) {
    struct backend *be = trainer->be;
    size_t planned = be->device.host_memory ? memory_total(&trainer->model.memory) : 0;
    size_t used = backend_peak_bytes(be), pending = planned > used ? planned - used : 0;
    size_t available = host_memory_available();
    return pending <= available && bytes <= available - pending;
}

int snapshot_open(struct snapshot *snapshot, const struct trainer *trainer, size_t moment_bytes,
                  struct error *error) {
    struct backend *be = trainer->be;
    size_t bytes = bytes_of(trainer, moment_bytes);
    *snapshot = (struct snapshot){.bytes = bytes};
    if (fits_in_memory(trainer, bytes)) snapshot->memory = backend_host_allocate(be, bytes);
    if (!snapshot->memory) {
        fail(error, "there is no memory of the host for a copy of %zu MiB", bytes >> 20);
        return RESULT_NONE;
    }
    snapshot->be = be;
    open_masters(&snapshot->masters, trainer);
    lay_out(snapshot, trainer, moment_bytes, &(struct arena){snapshot->memory, 0, bytes});
    snapshot->touching =
        be->device.host_memory && pthread_create(&snapshot->toucher, NULL, touch, snapshot) == 0;
    return 0;
}

static void end_touching(struct snapshot *snapshot) {
    if (snapshot->touching) pthread_join(snapshot->toucher, NULL);
    snapshot->touching = false;
}

void snapshot_close(struct snapshot *snapshot) {
    if (!snapshot->be) return;
    end_touching(snapshot);
    snapshot_ready(snapshot, true);
    backend_host_release(snapshot->be, snapshot->memory);
    masters_close(&snapshot->masters);
    arrfree(snapshot->ranges);
    *snapshot = (struct snapshot){0};
}

/* A range that follows the one before, in both memories, extends it. */
void snapshot_add(struct snapshot *snapshot, void *to, const void *from, size_t bytes) {
    struct transfer *last = arrlen(snapshot->ranges) ? &arrlast(snapshot->ranges) : NULL;
    if (last && (const char *)last->from + last->bytes == from &&
        (char *)last->host + last->bytes == to)
        last->bytes += bytes;
    else arrput(snapshot->ranges, ((struct transfer){from, to, bytes}));
}

void snapshot_begin(struct snapshot *snapshot, const struct trainer *trainer) {
    const struct master_group *from = trainer->model.masters.groups;
    const struct quantization *quantization = &trainer->model.quantization;
    end_touching(snapshot);
    arrsetlen(snapshot->ranges, 0);
    for (ptrdiff_t i = 0; i < arrlen(snapshot->masters.groups); i++) {
        const struct master_group *to = &snapshot->masters.groups[i];
        snapshot_add(snapshot, to->master.data, from[i].master.data, tensor_bytes(&to->master));
        if (to->remainder)
            snapshot_add(snapshot, to->remainder, from[i].remainder,
                         (size_t)to->count * sizeof *to->remainder);
    }
    if (snapshot->masters.groups && quantization->history_length > 0)
        snapshot_add(snapshot, snapshot->history, quantization->history,
                     history_bytes(quantization));
}

void snapshot_take(struct snapshot *snapshot) {
    backend_snapshot(snapshot->be, snapshot->ranges, (int)arrlen(snapshot->ranges));
}

bool snapshot_ready(const struct snapshot *snapshot, bool wait) {
    return backend_snapshot_ready(snapshot->be, wait);
}
