/* Estimate, in one process, of a run on several ranks: the memory of a rank, the bytes that it
 * sends in a step, and their time. Nothing is measured. Buckets and memory come from the code that
 * training uses, for the given number of ranks. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/core/gpt.h"
#include "model/plan/rank_timeline.h"

/* Defaults: an H100 at about 40 % of its 16-bit peak (60 % of fp32 without tensor cores) over the
 * passes of a step, about 60 % of its memory bandwidth, a network card of 400 Gb/s per rank, and
 * the latency of one hop of a ring. Units: TFLOPS, then bytes per second, seconds. */
#define RANK_TFLOPS_LOWER   400.0
#define RANK_TFLOPS_FLOAT32 40.0
#define RANK_MEMORY         2e12
#define RANK_LINK           50e9
#define RANK_LATENCY        3e-6

struct rank_request {
    const struct config *config; /* config for one rank, with resolved precision */
    struct backend *be;
    int ranks;    /* >= 2 */
    double flops; /* operations per second of a rank; 0: the default */
    double link;  /* bytes per second that a rank sends; 0: the default */
};

struct rank_estimate {
    struct config config;     /* config of each rank: see config_split_batch */
    struct memory_plan alone; /* plan of one process */
    struct memory_plan each;  /* plan of the last rank, whose shards are the largest */
    struct rank_machine machine;
    struct rank_step step;
    struct rank_times times;
    double step_tokens; /* tokens per step of all ranks */
};

/* Computes the estimate. Fails with a message if such a run is not possible. */
int rank_estimate_open(struct rank_estimate *estimate, const struct rank_request *request,
                       struct error *error);
void rank_estimate_close(struct rank_estimate *estimate);
