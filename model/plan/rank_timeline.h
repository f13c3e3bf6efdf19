/* A step on several ranks, simulated: one queue computes, one sends, each in order; and who waits
 * for whom. It knows no model, only amounts of work. */
#pragma once

#include <stdint.h>

/* What a rank sends of a bucket, and does to it. */
struct rank_load {
    int layer;  /* as in struct bucket (model/core/shards.h) */
    int leaves; /* after whose backward pass its gradients are sent */
    double gradient_bytes, weight_bytes;
    int gradient_messages, weight_messages; /* collective operations */
    double update_bytes; /* that the norm and the update of the own part read and write */
};

struct rank_step {
    struct rank_load *loads; /* stb_ds array, in the order of the updates */
    int64_t layers, micros;
    /* Floating point operations of one rank and micro-batch: of a layer there, back, and once more
     * where it is recomputed (all layers but the last); of the head both ways. */
    double forward, backward, again, head;
    double embedded_bytes; /* sent after all layers, in embedded_messages (struct embedded in
                            * model/core/exchange.h); the vectors' gradients wait for them */
    int embedded_messages;
    double sum_bytes; /* sent between backward pass and update, in sum_messages; all wait */
    int sum_messages;
};

struct rank_machine {
    int ranks;
    double flops;   /* of a rank, a second */
    double memory;  /* bytes a second that the update reads and writes */
    double link;    /* bytes a second that each rank sends */
    double latency; /* seconds until a neighbor in the ring has a first byte */
};

enum rank_traffic { RANK_GRADIENTS, RANK_SUMS, RANK_WEIGHTS, RANK_TRAFFIC };

struct rank_times {
    double alone; /* seconds of a step in which nothing is sent */
    double step;  /* the same with what is sent, once steps follow each other */
    double bytes[RANK_TRAFFIC], sending[RANK_TRAFFIC], waiting[RANK_TRAFFIC];
};

/* sending: seconds that the link is busy; waiting: seconds that the computing queue stands still
 * for it. step = alone + all waiting. */
void rank_timeline(struct rank_times *times, const struct rank_step *step,
                   const struct rank_machine *machine);

/* alone / step: how much of so many times the work of one rank is done. */
double rank_efficiency(const struct rank_times *times);

/* The part of sending during which ranks compute; 1 if nothing is sent. */
double rank_hidden(double sending, double waiting);
