#include "model/plan/rank_timeline.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/printed.h"

struct timeline {
    const struct rank_step *step;
    const struct rank_machine *machine;
    struct rank_times *times;
    double now;    /* time of the compute queue */
    double sent;   /* time at which the link has sent all queued data */
    double *ready; /* [loads] time at which a bucket's gradients, later its weights, are ready */
};

static void compute(struct timeline *t, double operations) {
    t->now += operations / t->machine->flops;
}

/* Queues data on the link. Returns the time at which it has been received. */
static double put(struct timeline *t, enum rank_traffic traffic, double bytes, int messages) {
    double hops = (double)messages * (double)(t->machine->ranks - 1);
    double seconds = bytes / t->machine->link + hops * t->machine->latency;
    if (t->sent < t->now) t->sent = t->now;
    t->sent += seconds;
    t->times->bytes[traffic] += bytes;
    t->times->sending[traffic] += seconds;
    return t->sent;
}

static void wait_until(struct timeline *t, enum rank_traffic traffic, double ready) {
    if (ready <= t->now) return;
    t->times->waiting[traffic] += ready - t->now;
    t->now = ready;
}

static void put_gradients(struct timeline *t, int64_t layer) {
    for (ptrdiff_t i = 0; i < arrlen(t->step->loads); i++) {
        const struct rank_load *load = &t->step->loads[i];
        if (load->sent_after == layer)
            t->ready[i] = put(t, RANK_GRADIENTS, load->gradient_bytes, load->gradient_messages);
    }
}

static void wait_for(struct timeline *t, enum rank_traffic traffic, int64_t layer) {
    for (ptrdiff_t i = 0; i < arrlen(t->step->loads); i++)
        if (t->step->loads[i].layer == layer) wait_until(t, traffic, t->ready[i]);
}

static void forward(struct timeline *t) {
    wait_for(t, RANK_WEIGHTS, -1);
    for (int64_t layer = 0; layer < t->step->layers; layer++) {
        wait_for(t, RANK_WEIGHTS, layer);
        compute(t, t->step->forward);
    }
    wait_for(t, RANK_WEIGHTS, t->step->layers);
    compute(t, t->step->head);
}

static void backward(struct timeline *t, bool last) {
    int64_t layers = t->step->layers;
    if (last) put_gradients(t, layers);
    for (int64_t layer = layers - 1; layer >= 0; layer--) {
        compute(t, t->step->backward + (layer + 1 < layers ? t->step->recompute : 0));
        if (last) put_gradients(t, layer);
    }
    if (!last) return;
    const struct rank_step *step = t->step;
    if (step->embedded_messages)
        wait_until(t, RANK_GRADIENTS,
                   put(t, RANK_GRADIENTS, step->embedded_bytes, step->embedded_messages));
    put_gradients(t, -1);
}

static void update(struct timeline *t) {
    const struct rank_step *step = t->step;
    for (ptrdiff_t i = 0; i < arrlen(step->loads); i++) wait_until(t, RANK_GRADIENTS, t->ready[i]);
    wait_until(t, RANK_SUMS, put(t, RANK_SUMS, step->sum_bytes, step->sum_messages));
    for (ptrdiff_t i = 0; i < arrlen(step->loads); i++) {
        const struct rank_load *load = &step->loads[i];
        t->now += load->update_bytes / t->machine->memory;
        t->ready[i] = put(t, RANK_WEIGHTS, load->weight_bytes, load->weight_messages);
    }
}

static void run_step(struct timeline *t) {
    for (int64_t micro = 0; micro < t->step->micros; micro++) {
        forward(t);
        backward(t, micro + 1 == t->step->micros);
    }
    update(t);
}

void rank_timeline(struct rank_times *times, const struct rank_step *step,
                   const struct rank_machine *machine) {
    struct timeline t = {.step = step, .machine = machine, .times = times};
    t.ready = calloc((size_t)arrlen(step->loads) + 1, sizeof *t.ready);
    if (!t.ready) end_out_of_memory();
    memset(times, 0, sizeof *times);
    run_step(&t); /* the first step does not wait for weights; all later ones are alike */
    double began = t.now;
    memset(times, 0, sizeof *times);
    run_step(&t);
    times->step = times->alone = t.now - began;
    for (int i = 0; i < RANK_TRAFFIC; i++) times->alone -= times->waiting[i];
    free(t.ready);
}

double rank_efficiency(const struct rank_times *times) {
    return times->alone / times->step;
}

double rank_hidden(double sending, double waiting) {
    return sending > waiting ? 1 - waiting / sending : sending > 0 ? 0 : 1;
}
