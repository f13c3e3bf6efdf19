/* Record of a run, read from its directory: config.json, metrics.jsonl and the optional
 * profile.json. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/json.h"

/* A line of metrics.jsonl. Null or missing numbers are NaN. */
struct run_step {
    int64_t step;
    double tokens; /* seen up to the step */
    double loss, gradient_norm, loss_scale, tokens_per_s, memory_bytes;
    bool skipped;
};

struct run_validation {
    int64_t step;
    double loss;
    double tokens; /* seen up to that step; NaN: its step has no line before it */
};

struct run_record {
    char *path;                         /* as given by the user */
    struct json_file config;            /* resolved config */
    const char *name, *precision;       /* values in config */
    int64_t seed, planned_steps;        /* values in config */
    bool in_fp32;                       /* autocast.enabled is false: fp32 everywhere */
    struct run_step *steps;             /* stb_ds array; steps ascend */
    struct run_validation *validations; /* stb_ds array; steps ascend */
    struct json_file profile;           /* its root is NULL if there is no profile.json */
    bool cut; /* the last line of metrics.jsonl was incomplete and is left out */
};

/* Reads a run; an unfinished or killed run is read up to its last complete line. Fails if
 * config.json or metrics.jsonl is missing, has no step, or is not in the format of ./train. After a
 * failure there is nothing to close, but closing is allowed. */
int run_record_read(struct run_record *run, const char *path, struct error *error);
void run_record_close(struct run_record *run);

int64_t run_record_last_step(const struct run_record *run);
