/* The keys of the config classes of huggingface/transformers 5 whose models can be read, and what
 * becomes of each. A key that is not in the table is ignored, as transformers ignores it. Internal
 * to model/io/huggingface_*.c. */
#pragma once

#include <stddef.h>

/* Classes, as a set. */
enum {
    IN_GPT2 = 1,
    IN_LLAMA = 2,
    IN_MISTRAL = 4,
    IN_QWEN2 = 8,
    IN_QWEN3 = 16,
    IN_QWEN = IN_QWEN2 | IN_QWEN3,
    IN_LLAMAS = IN_LLAMA | IN_MISTRAL | IN_QWEN,
    IN_ALL = IN_GPT2 | IN_LLAMAS
};

enum huggingface_use {
    KEY_READ,     /* sets a key of the config, or has code of its own */
    KEY_HARMLESS, /* changes no logits: training, generation, other heads, or unused by the class */
    KEY_REFUSED   /* changes them, and only the values in `allowed` can be computed */
};

struct huggingface_key {
    const char *key;
    int classes; /* classes whose files this row is for */
    enum huggingface_use use;
    /* KEY_READ: key of the config, or NULL if code of its own reads it; and the values that an
     * absent key and a null stand for, NAN for none. */
    const char *path;
    double absent, null;
    /* KEY_READ: spellings that win over `key`, and that count if both are absent; or NULL. */
    const char *first, *last;
    /* KEY_REFUSED: values as JSON without spaces, separated by spaces. An absent key is always
     * allowed. `remedy` ends the message; NULL: the allowed values. */
    const char *allowed, *remedy;
};

extern const struct huggingface_key huggingface_keys[];
extern const size_t huggingface_key_count;
