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

/* The defaults are those of keys that a config.json may lack; 0: n_head, n_embd / n_head, a class
 * without windows. */
struct huggingface_class {
    const char *type, *family; /* "llama", and the class is "Llama" + "ForCausalLM" */
    enum model_bias bias;
    bool qk_norm;
    int64_t n_kv_head, head_dim, window;
};

extern const struct huggingface_class huggingface_classes[HUGGINGFACE_CLASSES];

/* Keys of the config in the config.json of a model whose parts no class has: model_type "mantissa",
 * and these keys of the block "model" ("model.n_layer"). Ended by NULL. */
extern const char *const huggingface_own_keys[];
