/* Rows that continue texts in the key-value cache, and their arrays in memory. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/decode_args.h"

/* Rows that gpt_extend adds to texts in the cache: one of each text, or several of one. */
struct added {
    int64_t rows;       /* at most gpt_added_max */
    int64_t cache_row;  /* row of the cache for the first row's keys and values; the others
                         * follow */
    int64_t stride;     /* as in struct attention_decode_args */
    int64_t keys_least; /* smallest number of keys of a row, its own included */
    int64_t keys_to;    /* the largest */
};

/* Arrays of the rows in memory for them; NULL without memory, while planning. */
struct added_arrays {
    struct decode_keys *keys; /* [rows] rows of the cache, the row's own included */
    int32_t *tokens;          /* [rows] */
    int32_t *positions;       /* [rows] positions of the tokens in their texts */
};

enum { ADDED_ROWS = 64 }; /* most rows of one text added per call, at most the context */

static inline size_t added_bytes(int64_t rows) {
    return (size_t)rows * (sizeof(struct decode_keys) + 2 * sizeof(int32_t));
}

static inline struct added_arrays added_arrays_in(void *memory, int64_t rows) {
    struct decode_keys *keys = memory;
    if (!memory) return (struct added_arrays){0};
    int32_t *tokens = (int32_t *)(keys + rows);
    return (struct added_arrays){keys, tokens, tokens + rows};
}
