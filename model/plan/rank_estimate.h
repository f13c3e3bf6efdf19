/* A run of a config on several ranks, worked out on one: the memory of a rank, what it sends in a
 * step, and how long that takes. Nothing is measured. The buckets and the memory are those of the
 * training itself, laid out for so many ranks by the same lines of code. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/core/gpt.h"
#include "model/plan/rank_timeline.h"

/* What is assumed where nothing is given: an H100 at about 40 % of its peak in 16 bit (60 % in
 * fp32 without tensor cores) over the passes of a step, and its memory at about 60 %; a network
 * card of 400 Gb/s for each; and what a step of a ring takes by itself. */
#define RANK_TFLOPS_LOWER   400.0
#define RANK_TFLOPS_FLOAT32 40.0
#define RANK_MEMORY         2e12
#define RANK_LINK           50e9
#define RANK_LATENCY        3e-6

struct rank_question {
    const struct config *config; /* its precision resolved, of one rank */
    struct backend *be;
    int ranks;    /* >= 2 */
    double flops; /* a second; 0: what is assumed */
    double link;  /* bytes a second; 0: what is assumed */
};

struct rank_estimate {
    struct config config;           /* as each rank has it: see config_split_batch */
    struct memory_plan alone, each; /* each: of the last rank, whose parts are the largest */
    struct rank_machine machine;
    struct rank_step step;
    struct rank_times times;
    double step_tokens; /* of all ranks */
};

/* Fails with a message where such a run would be refused. */
int rank_estimate_open(struct rank_estimate *estimate, const struct rank_question *question,
                       struct error *error);
void rank_estimate_close(struct rank_estimate *estimate);
