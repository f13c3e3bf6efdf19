/* Groups of runs that differ only in seed, and the differences between the groups' configs. */
#pragma once

#include "data/util/error.h"
#include "model/lab/compare/run_record.h"

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
 * config lacks the key}}. A loss_scale that only one precision has is no difference. The weight is
 *
 *   expected    precision
 *   arithmetic  device, threads, autocast, train.recompute: same training, other arithmetic
 *   validation  eval: validation losses are not comparable
 *   training    model, data, train, optimizer: a different training */
struct cJSON *config_differences(const struct run_group *groups);
