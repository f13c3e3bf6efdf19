/* An arena: one block of memory, assigned from the front, never freed in pieces.
 *
 *      base                used                capacity
 *       |  tensor | tensor | free ............... |
 *
 * A layout function takes tensors from an arena. On a measuring arena (base == NULL) it only adds
 * up sizes; on a block of that size it assigns memory. So the printed memory plan and the memory in
 * use come from the same code. */
#pragma once

#include "kernels/tensor.h"

enum {
    ARENA_ALIGNMENT = 256
}; /* bytes; alignment that cuBLASLt and TMA prefer, a multiple of a cache line */

struct arena {
    char *base;      /* NULL while measuring */
    size_t used;     /* bytes */
    size_t capacity; /* bytes; ignored while measuring */
};

/* Returns the number of blocks of `block` elements that cover count. */
static inline int64_t blocks_of(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

/* Returns the smallest multiple of `multiple` that is at least value; value is at least 0. */
static inline int64_t round_up(int64_t value, int64_t multiple) {
    return blocks_of(value, multiple) * multiple;
}

/* Returns `bytes` bytes of memory aligned to ARENA_ALIGNMENT; NULL while measuring. */
void *arena_take(struct arena *arena, size_t bytes);

/* Returns a tensor of rank 1 or 2; columns == 0 means rank 1. */
struct tensor arena_tensor(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns);
