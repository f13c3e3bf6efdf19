/* Simulation of a step on several ranks: a compute queue and a communication queue, each in order,
 * and the time one waits for the other. The input is amounts of work, not a model. */
#pragma once

#include <stdint.h>

/* Traffic and update work of a bucket on one rank. */
struct rank_load {
    int layer;      /* as in struct bucket (model/core/shards.h) */
    int sent_after; /* layer after whose backward pass the gradients are sent */
    double gradient_bytes, weight_bytes;
    int gradient_messages, weight_messages; /* number of collective operations */
    double update_bytes; /* bytes that norm and update of the rank's shard read and write */
};

struct rank_step {
    struct rank_load *loads; /* stb_ds array, in the order of the updates */
    int64_t layers, micros;
    /* Floating-point operations of one rank and micro-batch: forward, backward and recomputing of
     * one layer (the last layer is not recomputed); forward and backward of the head. */
    double forward, backward, recompute, head;
    double embedded_bytes; /* rows of the embedding's gradient, sent after all layers and before the
                            * gradients of vectors (model/core/exchange.h) */
    int embedded_messages;
    double sum_bytes; /* norm and loss sums, sent between backward pass and update, which waits */
    int sum_messages;
};

struct rank_machine {
    int ranks;
    double flops;   /* operations per second of a rank */
    double memory;  /* bytes per second that the update reads and writes */
    double link;    /* bytes per second that each rank sends */
    double latency; /* seconds until the first byte reaches the next rank of the ring */
};

enum rank_traffic { RANK_GRADIENTS, RANK_SUMS, RANK_WEIGHTS, RANK_TRAFFIC };

struct rank_times {
    double alone; /* seconds of a step without communication */
    double step;  /* seconds of a step in steady state: alone + the sum of waiting */
    double bytes[RANK_TRAFFIC];
    double sending[RANK_TRAFFIC]; /* seconds that the link is busy */
    double waiting[RANK_TRAFFIC]; /* seconds that the compute queue waits for the link */
};

/* Simulates two steps and fills times with those of the second. */
void rank_timeline(struct rank_times *times, const struct rank_step *step,
                   const struct rank_machine *machine);

/* Returns alone / step, the parallel efficiency. */
double rank_efficiency(const struct rank_times *times);

/* Returns the fraction of sending that overlaps with computation; 1 if nothing is sent. */
double rank_hidden(double sending, double waiting);
