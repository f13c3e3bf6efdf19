#include "model/memory_parts.h"

static const struct {
    const char *name;
    size_t offset;
} parts[] = {
#define X(part, field, name) {name, offsetof(struct memory_plan, field)},
    MEMORY_PARTS(X)
#undef X
};

const char *memory_part_name(enum memory_part part) {
    return parts[part].name;
}

size_t memory_part_bytes(const struct memory_plan *plan, enum memory_part part) {
    return *(const size_t *)((const char *)plan + parts[part].offset);
}
