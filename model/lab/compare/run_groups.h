/* Runs that differ only in seed, as groups, and what the groups' configs differ by. */
#pragma once

#include "data/util/error.h"
#include "model/lab/compare/run_record.h"

enum { RUN_GROUPS_MAX = 8 }; /* as many as a chart has colours */

struct run_group {
    char *label;
    const struct run_record **runs; /* stb_ds array, seeds ascend and differ */
};

/* Puts runs into groups, in the order in which they come.
 *
 * labels[i], unless NULL, names the group of run i; its runs may differ in their seed, their name,
 * and in what has no influence on the numbers of a training: run_dir, log, sample, checkpoint.
 * Without labels runs that differ in no more than that are a group; but a seed that the group has
 * already begins another one, so that runs before and after a change of the program can be
 * compared. Such a group is labelled by its precision where that tells all groups apart, else by
 * the name of its first run, without "-seedN" and numbered if need be.
 *
 * *groups is an stb_ds array for run_groups_free, after a failure too. */
int run_groups_make(struct run_group **groups, const struct run_record *runs, char *const *labels,
                    int count, struct error *error);
void run_groups_free(struct run_group *groups);

enum config_weight {
    CONFIG_WEIGHT_EXPECTED,   /* the precision */
    CONFIG_WEIGHT_ARITHMETIC, /* device, threads, autocast, train.recompute: how it is done */
    CONFIG_WEIGHT_VALIDATION, /* eval: validation losses mean something else */
    CONFIG_WEIGHT_TRAINING,   /* model, data, train, optimizer: another training */
};

struct config_difference {
    char *key;
    enum config_weight weight;
    char **values; /* stb_ds array, JSON, one for each group; NULL: the group's config lacks it */
};

/* Keys whose values differ between groups, without seed and what has no influence. A loss_scale
 * that a config leaves out, because its precision has none, is no difference. */
struct config_difference *config_differences(const struct run_group *groups);
void config_differences_free(struct config_difference *differences);
