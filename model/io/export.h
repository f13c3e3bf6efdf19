/* A copy of a model for others to load: a complete directory of Hugging Face, in a smaller dtype if
 * wanted, without what only training needs.
 *
 *     TO/model.safetensors        our order and names; a large one in shards (tensor_shards.h)
 *        config.json              the source's, with its dtype
 *        generation_config.json   the source's, or one made from its config.json
 *        vocab.json merges.txt tokenizer.json tokenizer_config.json special_tokens_map.json
 *        added_tokens.json        those that the source has
 *
 * It is written as .NAME.tmp beside TO, every file made durable, and then renamed: TO is there
 * whole or not at all. What an interrupted export left under that name is removed by the next. */
#pragma once

#include "data/util/error.h"
#include "kernels/dtype.h"

struct export_options {
    enum dtype dtype;
    double shard_gb; /* 1e9 bytes of data in a file at most; 0: as many as in a checkpoint's */
};

/* Exports the checkpoint, or the model of Hugging Face (with shards too), in the directory `from`
 * to the directory `to`, which may not exist or must be empty; its parents are made. A checkpoint
 * is verified first. Values are rounded to nearest, ties to even; where source and target have the
 * same dtype they keep their bits. Infinities and NaN stay what they are; a finite value that
 * dtype cannot hold is a failure that names it. Memory needed does not depend on the model's
 * size. */
int export_model(const char *to, const char *from, const struct export_options *options,
                 struct error *error);
