/* Costs in time of options that save memory: transfers of offloaded state and of streamed layers,
 * and the arithmetic of recomputing. */
#pragma once

#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/plan/memory_plan.h"

/* Returns the seconds per step in which the state offloaded by config crosses be->device.link, both
 * directions at once. A step takes at least this long, and about this much longer. */
double memory_offload_seconds(const struct config *config, struct backend *be);

/* Bytes of weights, gradients and activations of streamed layers that a step copies. */
struct memory_copies {
    double to_device, to_host;
};
struct memory_copies memory_copies_of(const struct memory_plan *plan, const struct config *config);

/* Returns the seconds per step that these take at be->device.link in each direction. They are
 * copied beside the computation: a step takes at least this long, and longer by it only if it
 * computes for less. */
double memory_copy_seconds(const struct config *config, struct backend *be);

/* Writes a time of at least a second in seconds, a shorter one in milliseconds. Returns text. */
enum { MEMORY_SECONDS_MAX = 24 };
const char *memory_seconds_text(char text[MEMORY_SECONDS_MAX], double seconds);

/* Returns the multiply-adds of recomputing as a fraction of those of a step without it, in matmuls
 * and attention. The last layer needs no recomputing. */
double memory_recomputed_part(const struct config *config, const struct backend *be);
