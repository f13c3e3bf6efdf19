#include "kernels/arena.h"

#include <assert.h>

void *arena_take(struct arena *arena, size_t bytes) {
    char *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (size_t)round_up((int64_t)bytes, ARENA_ALIGNMENT);
    assert(!arena->base || arena->used <= arena->capacity);
    return memory;
}

struct tensor arena_tensor(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns) {
    struct tensor tensor = {NULL, dtype, columns ? 2 : 1, {rows, columns}};
    tensor.data = arena_take(arena, tensor_bytes(&tensor));
    return tensor;
}
