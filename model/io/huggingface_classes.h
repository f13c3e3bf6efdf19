/* Tables that reading and printing share. Internal to model/io/huggingface_*.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "model/architecture/parts.h"

enum { GPT2_END_OF_TEXT = 50256 };

/* Classes of huggingface/transformers in Llama's family. */
enum {
    HUGGINGFACE_LLAMA,
    HUGGINGFACE_MISTRAL,
    HUGGINGFACE_QWEN2,
    HUGGINGFACE_QWEN3,
    HUGGINGFACE_CLASSES
};

struct huggingface_class {
    const char *type, *family; /* "llama", and the class is "Llama" + "ForCausalLM" */
    int keys;                  /* its bit in the table of model/io/huggingface_keys.h */
    enum model_bias bias;
    bool qk_norm;
    int64_t window; /* if config.json has none; 0: a class without windows */
};

extern const struct huggingface_class huggingface_classes[HUGGINGFACE_CLASSES];

/* Keys of the config in the config.json of a model whose parts no class has: model_type "mantissa",
 * and these keys of the block "model" ("model.n_layer"). Ended by NULL. */
extern const char *const huggingface_own_keys[];
