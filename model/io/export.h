/* Exports a model without the training state: as a complete Hugging Face directory, or as a GGUF
 * file for llama.cpp.
 *
 *     TO/model.safetensors        our order and names; a large one in shards (tensor_files.h)
 *        config.json ...          the source's other files: model/io/base_files.h
 *     TO.gguf                     everything in one file: model/io/gguf_model.h
 *
 * A directory of adapters has adapter_model.safetensors and adapter_config.json in place of the
 * model's. With `merge` it is the model that they were trained on, with W + scale * (B A) in place
 * of W, computed in fp32. A GGUF file holds no adapters, so it needs `merge`.
 *
 * The directory is written as .NAME.tmp beside TO, the file as TO.gguf.tmp. All is made durable,
 * and then renamed, so TO is complete or absent. The next export removes the leftovers of an
 * interrupted one. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/error.h"
#include "kernels/dtype.h"
#include "model/io/gguf_types.h"

struct export_options {
    enum dtype dtype;         /* of a directory */
    enum gguf_type gguf_type; /* of a GGUF file */
    FILE *notes;              /* for what a GGUF file lacks (note.h) */
    double shard_gb;          /* limit of data in a file, in 1e9 bytes; 0: as in checkpoints */
    bool merge;               /* adapters: write the model with the adapters in its weights */
    const char *base; /* adapters: folder of their model, if it has moved; NULL: where it was */
};

/* True if the target is a GGUF file: its name ends in ".gguf", in any case. */
bool export_is_gguf(const char *to);

/* Exports the checkpoint or (sharded) Hugging Face model in the directory `from` to the directory
 * `to`, which must be absent or empty, or to the file `to`, which must be absent; its parents are
 * created. The caller has verified a checkpoint (checkpoint_locate).
 * Values are rounded to nearest, ties to even, and keep their bits if the dtypes are equal.
 * Infinities and NaN are preserved; a finite value that overflows dtype is an error that names it.
 * Memory use does not depend on the model's size. */
int export_model(const char *to, const char *from, const struct export_options *options,
                 struct error *error);
