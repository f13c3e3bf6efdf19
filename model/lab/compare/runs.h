/* Runs: records read from their directories (config.json, metrics.jsonl and the optional
 * profile.json), groups of runs that differ only in seed, and the differences between the groups'
 * configs. */
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

/* ---- groups */

enum { RUN_GROUPS_MAX = 8 }; /* colours that a reader of charts tells apart */

struct run_group {
    char *label;
    const struct run_record **runs; /* stb_ds array; seeds ascend and differ */
};

/* Assigns runs to groups, in the given order.
 *
 * Runs of a group may differ in seed, name and keys that do not affect training: run_dir, log,
 * sample, checkpoint. labels[i] names the group of run i. If it is NULL, the run joins a group with
 * an equal config, unless that has its seed already: then it begins another group, so that runs
 * before and after a change of the program can be compared. Groups without a label are named by
 * their precision if all precisions differ, otherwise by the name of their first run, without
 * "-seedN" and numbered if necessary.
 *
 * *groups is an stb_ds array for run_groups_free, also after a failure. */
int run_groups_make(struct run_group **groups, const struct run_record *runs, char *const *labels,
                    int count, struct error *error);
void run_groups_free(struct run_group *groups);

/* Returns the keys whose values differ between groups, except the seed and keys that do not affect
 * training: an array to be deleted, of {"key", "weight", "values": {label: value, or null if the
 * config lacks the key}}. Keys that only one precision has, as loss_scale, are no difference. The
 * weight is
 *
 *   expected    precision
 *   arithmetic  device, threads, autocast, train.recompute: same training, other arithmetic; also
 *               train.micro_batch_size and grad_accum_steps, if steps have as many tokens
 *   validation  eval: validation losses are not comparable
 *   training    model, data, train, objective, distill, optimizer: a different training */
struct cJSON *config_differences(const struct run_group *groups);
