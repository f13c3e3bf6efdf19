/* The tokens that a config.json of Hugging Face names. */
#pragma once

#include <stdint.h>

/* Special tokens; -1 for none. */
struct huggingface_tokens {
    int64_t begin, end, pad; /* begin and end of texts, and padding */
};
