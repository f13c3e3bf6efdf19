/* The tokens that a config.json of Hugging Face names. */
#pragma once

#include <stdint.h>

/* Tokens with a meaning of their own; -1 for none. */
struct huggingface_tokens {
    int64_t begin, end, pad; /* of texts */
};
