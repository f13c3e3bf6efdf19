/* An arena: one block of memory, carved from the front, never freed in pieces.
 *
 *     base                used                capacity
 *      |  tensor | tensor | free ............... |
 *
 * A layout function takes tensors from an arena. Run on a measuring arena (base == NULL) it only
 * adds up sizes; run again on a block of that size it hands out memory. So the memory plan that
 * is printed and the memory that is used come from the same lines of code. */
#pragma once

#include "kernels/tensor.h"

enum { ARENA_ALIGNMENT = 256 }; /* bytes; what cuBLASLt and TMA like, a multiple of a cache line */

struct arena {
    char *base;      /* NULL while measuring */
    size_t used;     /* bytes */
    size_t capacity; /* bytes; ignored while measuring */
};

/* The smallest multiple of `multiple` from value (at least 0) on. */
static inline int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/* bytes of memory aligned to ARENA_ALIGNMENT; NULL while measuring. */
void *arena_take(struct arena *arena, size_t bytes);

/* A tensor of rank 1 or 2; columns == 0 asks for rank 1. */
struct tensor arena_tensor(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns);
