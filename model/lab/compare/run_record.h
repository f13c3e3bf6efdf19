/* What a run left behind in its directory: config.json, metrics.jsonl, perhaps profile.json. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "data/util/json.h"

/* A number that is null or missing in the file is NaN. */
struct run_step {
    int64_t step;
    double loss, gradient_norm, loss_scale, tokens_per_s, memory_bytes;
    bool skipped;
};

struct run_validation {
    int64_t step;
    double loss;
};

/* Of ./train --profile, milliseconds. */
struct run_profile_part {
    char *name;
    double ms;
};

struct run_record {
    char *path;                         /* as given */
    struct json_file config;            /* as resolved */
    const char *name, *precision;       /* of the config */
    int64_t seed, planned_steps;        /* likewise */
    bool in_fp32;                       /* autocast.enabled is false: fp32 everywhere */
    struct run_step *steps;             /* stb_ds array, steps ascend */
    struct run_validation *validations; /* likewise */
    struct run_profile_part *profile;   /* stb_ds array; NULL: no profile.json */
    double profile_step_ms, profile_products_ms;
    bool cut; /* the last line of metrics.jsonl was not whole, and left out */
};

/* A run that is still going on, or was killed, is read as far as it came. Fails, with nothing to
 * close (though closing is harmless), when there is no config.json or metrics.jsonl, when no step
 * is in it, and where a file is not what ./train writes. */
int run_record_read(struct run_record *run, const char *path, struct error *error);
void run_record_close(struct run_record *run);

int64_t run_record_last_step(const struct run_record *run);
