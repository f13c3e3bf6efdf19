/* What the ranks of a run must have in common, found out before they train: each compares what it
 * has with what rank 0 has, and all fail, with the name of what differs, where one differs. */
#pragma once

#include "data/util/error.h"
#include "kernels/ranks.h"
#include "model/config/config.h"
#include "model/io/run_setup.h"
#include "model/core/trainer.h"

/* Splits the batch of the config among so many ranks. Fails if the config does not allow that. */
int run_ranks_split(struct config *config, int rank_count, struct error *error);

/* The program's version, what devices it was built for, and the resolved config, but for `threads`.
 */
int run_ranks_compare_config(const struct ranks *ranks, const struct config *config,
                             struct error *error);

/* The texts, which may be on a disk that all share or be copied to each machine: names and sizes of
 * the shards, and of each, as of its mask, 64 pieces of 4 KiB, spread evenly. */
int run_ranks_compare_data(const struct ranks *ranks, const struct config *config,
                           const struct source *train, const struct source *val,
                           struct error *error);

/* What a device decided: precision, forms, counts; without a divided optimizer also what processors
 * or GPUs there are. */
int run_ranks_compare_plan(const struct ranks *ranks, const struct trainer *trainer,
                           struct error *error);

/* Step, loss scale and a sample of the weights, once they are loaded. */
int run_ranks_compare_start(const struct ranks *ranks, const struct trainer *trainer,
                            struct error *error);

/* Whether all see a file that rank 0 has written. */
int run_ranks_see(const struct ranks *ranks, const char *path, struct error *error);
