#include "kernels/arena.h"

#include <assert.h>

void *arena_take(struct arena *arena, size_t bytes) {
    size_t rounded = (bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    char *place = arena->base ? arena->base + arena->used : NULL;
    arena->used += rounded;
    assert(!arena->base || arena->used <= arena->capacity);
    return place;
}

struct tensor arena_tensor(struct arena *arena, enum dtype dtype, int64_t rows, int64_t columns) {
    struct tensor tensor = {NULL, dtype, columns ? 2 : 1, {rows, columns}};
    tensor.data = arena_take(arena, tensor_bytes(&tensor));
    return tensor;
}
