#include "model/core/memory_parts.h"

static const struct {
    const char *name;
    size_t offset;
} parts[MEMORY_PARTS] = {
#define X(part, field, name) [MEMORY_PART_##part] = {name, offsetof(struct memory_plan, field)},
    MEMORY_DEVICE_PARTS(X) MEMORY_HOST_PARTS(X)
#undef X
        [MEMORY_PART_TOTAL] = {"total", 0},
};

static size_t sum(const struct memory_plan *plan, enum memory_part end) {
    size_t bytes = 0;
    for (enum memory_part part = 0; part < end; part++) bytes += memory_part_bytes(plan, part);
    return bytes;
}

const char *memory_part_name(enum memory_part part) {
    return parts[part].name;
}

size_t memory_part_bytes(const struct memory_plan *plan, enum memory_part part) {
    if (part == MEMORY_PART_TOTAL) return memory_total(plan);
    return *(const size_t *)((const char *)plan + parts[part].offset);
}

size_t memory_total(const struct memory_plan *plan) {
    return sum(plan, MEMORY_PART_TOTAL);
}

size_t memory_host(const struct memory_plan *plan) {
    return plan->host + plan->streamed + plan->host_gradients + plan->host_activations;
}

size_t memory_state_bytes(const struct memory_plan *plan) {
    return sum(plan, MEMORY_PARTS_STATE);
}
