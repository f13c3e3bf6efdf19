#include "model/snapshot.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/host_memory.h"
#include "kernels/ranks/collectives.h"

static void host_download(struct backend *be, void *host, const void *from, size_t bytes) {
    (void)be;
    memcpy(host, from, bytes);
}

/* Enough to read what lies on the host. */
static const struct device_functions host_functions = {.download = host_download};

static size_t history_bytes(const struct quantization *quantization) {
    if (quantization->history_length == 0) return 0;
    int64_t count = quantization->history_length * quantization_count(quantization);
    return (size_t)count * sizeof *quantization->history;
}

/* Of several ranks the first writes the weights for all; how moments are written is up to them. */
static void carve(struct snapshot *snapshot, const struct trainer *trainer, struct arena *arena) {
    const struct ranks *ranks = trainer->be->collectives->ranks;
    if (ranks->rank > 0) return;
    masters_carve(&snapshot->masters, arena, arena);
    snapshot->history = arena_take(arena, history_bytes(&trainer->gpt.quantization));
    for (int i = 0; i < 2 && ranks->size == 1; i++) {
        const struct tensor *moments = &trainer->optimizer.moments[i];
        snapshot->moments[i] = arena_tensor(arena, moments->dtype, tensor_count(moments), 0);
    }
}

static void open_masters(struct masters *masters, const struct trainer *trainer) {
    const struct gpt *gpt = &trainer->gpt;
    masters_open(masters, gpt->list, &gpt->precision, gpt->offload);
}

bool snapshot_wanted(const struct config *config) {
    int64_t every = config->checkpoint.every;
    if (config->checkpoint.keep_best && (every == 0 || config->eval.every < every))
        every = config->eval.every;
    return config->checkpoint.background && every > 0 && every < config->train.steps;
}

size_t snapshot_bytes(const struct trainer *trainer) {
    struct snapshot measured = {0};
    struct arena arena = {0};
    open_masters(&measured.masters, trainer);
    carve(&measured, trainer, &arena);
    masters_close(&measured.masters);
    return arena.used;
}

/* About what a rank of several has to gather of their moments to save in the background. */
static size_t gathered_bytes(const struct trainer *trainer) {
    int ranks = trainer->be->collectives->ranks->size;
    const struct gpt *gpt = &trainer->gpt;
    if (ranks == 1) return 0;
    return (size_t)(2 * gpt->count / ranks) * dtype_bytes(gpt->precision.moments);
}

void snapshot_plan(struct trainer *trainer) {
    if (snapshot_wanted(trainer->config))
        trainer->gpt.memory.snapshot = snapshot_bytes(trainer) + gathered_bytes(trainer);
}

/* The system hands out pages when they are first written, which takes longer than the copy. */
static void *touch(void *argument) {
    const struct snapshot *snapshot = argument;
    memset(snapshot->memory, 0, snapshot->bytes);
    return NULL;
}

/* Memory that is planned has been taken, but pages that nobody has written yet are not missing. */
static bool has_room(const struct trainer *trainer, size_t bytes) {
    struct backend *be = trainer->be;
    size_t planned = be->device.host_memory ? memory_total(&trainer->gpt.memory) : 0;
    size_t held = backend_peak_bytes(be), to_come = planned > held ? planned - held : 0;
    size_t available = host_memory_available();
    return to_come <= available && bytes <= available - to_come;
}

int snapshot_open(struct snapshot *snapshot, const struct trainer *trainer, struct error *error) {
    struct backend *be = trainer->be;
    size_t bytes = snapshot_bytes(trainer);
    *snapshot = (struct snapshot){.bytes = bytes};
    snapshot->host = (struct backend){
        .functions = &host_functions,
        .collectives = &collectives_alone,
        .device = {.kind = BACKEND_CPU, .host_memory = true},
    };
    size_t all = bytes + gathered_bytes(trainer);
    if (has_room(trainer, all)) snapshot->memory = backend_host_allocate(be, bytes);
    if (!snapshot->memory) {
        fail(error, "there is no memory of the host for a copy of %zu MiB", all >> 20);
        return RESULT_NONE;
    }
    snapshot->be = be;
    open_masters(&snapshot->masters, trainer);
    carve(snapshot, trainer, &(struct arena){snapshot->memory, 0, bytes});
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
    snapshot_there(snapshot, true);
    backend_host_release(snapshot->be, snapshot->memory);
    masters_close(&snapshot->masters);
    *snapshot = (struct snapshot){0};
}

/* What has to be copied. */
struct copies {
    struct transfer *list; /* stb_ds array */
};

static void add(struct copies *copies, void *to, const void *from, size_t bytes) {
    struct transfer transfer = {from, to, bytes};
    arrput(copies->list, transfer);
}

static void add_masters(struct copies *copies, const struct masters *to,
                        const struct masters *from) {
    for (ptrdiff_t i = 0; i < arrlen(from->groups); i++) {
        const struct master_group *group = &from->groups[i];
        add(copies, to->groups[i].master.data, group->master.data, tensor_bytes(&group->master));
        if (group->remainder)
            add(copies, to->groups[i].remainder, group->remainder,
                (size_t)group->count * sizeof *group->remainder);
    }
}

static void set_state(struct snapshot *snapshot, const struct trainer *trainer) {
    struct trainer *state = &snapshot->state;
    *state = *trainer;
    state->be = state->gpt.be = state->gpt.quantization.be = &snapshot->host;
    state->gpt.masters = snapshot->masters;
    state->gpt.quantization.history = snapshot->history;
    state->optimizer.gpt = &state->gpt;
    state->optimizer.moments[0] = snapshot->moments[0];
    state->optimizer.moments[1] = snapshot->moments[1];
}

void snapshot_take(struct snapshot *snapshot, const struct trainer *trainer) {
    const struct gpt *gpt = &trainer->gpt;
    struct copies copies = {0};
    end_touching(snapshot);
    const struct ranks *ranks = snapshot->be->collectives->ranks;
    bool writes = ranks->rank == 0;
    if (writes) add_masters(&copies, &snapshot->masters, &gpt->masters);
    for (int i = 0; i < 2 && ranks->size == 1; i++) {
        const struct tensor *moments = &trainer->optimizer.moments[i];
        add(&copies, snapshot->moments[i].data, moments->data, tensor_bytes(moments));
    }
    if (writes && gpt->quantization.history_length > 0)
        add(&copies, snapshot->history, gpt->quantization.history,
            history_bytes(&gpt->quantization));
    backend_snapshot(snapshot->be, copies.list, (int)arrlen(copies.list));
    arrfree(copies.list);
    set_state(snapshot, trainer);
}

bool snapshot_there(const struct snapshot *snapshot, bool wait) {
    return backend_snapshot_there(snapshot->be, wait);
}
