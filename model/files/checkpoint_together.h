/* Writing moments of which each rank has a part: the ranks write files at the same time, each of
 * whole tensors, so that what is written does not depend on who had what.
 *
 *     optimizer-00001-of-00004.safetensors      by rank 0
 *     optimizer-00002-of-00004.safetensors      by rank 1, ...
 *     optimizer.safetensors.index.json          by rank 0
 *
 * While they write, each rank sends the others what it has of the tensors that they write. */
#pragma once

#include "data/base/error.h"
#include "model/files/checkpoint_tensors.h"
#include "model/optimizer.h"

/* Writes both moments durably, as checkpoint_write_moments does; all ranks call it. On rank 0 the
 * files of all ranks are appended to those of the target. Fails on all ranks if it does on one. */
int checkpoint_write_moments_together(const struct optimizer *optimizer,
                                      const struct checkpoint_target *target, struct error *error);
