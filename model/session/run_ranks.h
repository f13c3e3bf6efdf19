/* Consistency checks between the ranks of a run, made before training. Each rank compares its own
 * value with that of rank 0. If one differs, all ranks fail with a message that names it. */
#pragma once

#include "data/util/error.h"
#include "kernels/ranks.h"
#include "model/config/config.h"
#include "model/optimize/trainer.h"
#include "model/session/setup.h"

/* Compares the program version and the resolved config, except `threads`. */
int run_ranks_compare_config(const struct ranks *ranks, const struct config *config,
                             struct error *error);

/* Sets the hashes of both sources, and compares them: shards may be shared or copied to each
 * machine. Hashed are their names and sizes, and 64 evenly spaced pieces of each shard (4096
 * tokens) and of its mask (4096 bytes), which are all of a shard of up to 262,144 tokens. */
int run_ranks_compare_data(const struct ranks *ranks, const struct config *config,
                           struct source *train, struct source *val, struct error *error);

/* Compares the resolved precision, the form of the master weights, the gradient dtype and the
 * number of sums of squares. If the optimizer is not sharded, also compares device models and
 * libraries. */
int run_ranks_compare_plan(const struct ranks *ranks, const struct trainer *trainer,
                           struct error *error);

/* Compares the step, the next sample, the loss scale and a sample of the loaded weights. */
int run_ranks_compare_start(const struct ranks *ranks, const struct trainer *trainer,
                            struct error *error);

/* Fails unless all ranks see the file or directory that rank 0 has written. */
int run_ranks_check_visible(const struct ranks *ranks, const char *path, struct error *error);
