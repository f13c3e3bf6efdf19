/* Exports a model as a complete Hugging Face directory, optionally in a smaller dtype, without the
 * training state.
 *
 *     TO/model.safetensors        our order and names; a large one in shards (tensor_files.h)
 *        config.json ...          the source's other files: model/io/base_files.h
 *
 * Of a checkpoint of adapters it has adapter_model.safetensors and adapter_config.json in place of
 * the model's. With `merge` it is the model that they were trained on, with W + scale B A in place
 * of W, computed in fp32.
 *
 * The directory is written as .NAME.tmp beside TO, every file is made durable, and then it is
 * renamed, so TO is complete or absent. The next export removes the leftovers of an interrupted
 * one. */
#pragma once

#include <stdbool.h>

#include "data/util/error.h"
#include "kernels/dtype.h"

struct export_options {
    enum dtype dtype;
    double shard_gb;  /* limit of data in a file, in 1e9 bytes; 0: as in checkpoints */
    bool merge;       /* adapters: write the model with the adapters in its weights */
    const char *base; /* adapters: folder of their model, if it has moved; NULL: where it was */
};

/* Exports the checkpoint or (sharded) Hugging Face model in the directory `from` to the directory
 * `to`, which must be absent or empty; its parents are created. A checkpoint is verified first.
 * Values are rounded to nearest, ties to even, and keep their bits if the dtypes are equal.
 * Infinities and NaN are preserved; a finite value that overflows dtype is an error that names it.
 * Memory use does not depend on the model's size. */
int export_model(const char *to, const char *from, const struct export_options *options,
                 struct error *error);
