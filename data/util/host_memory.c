#include "data/util/host_memory.h"
#include "data/util/min_max.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Returns the number after `label` in a small text file of the system, or SIZE_MAX. */
static size_t system_number(const char *path, const char *label) {
    char line[256];
    unsigned long long value;
    size_t found = SIZE_MAX, length = strlen(label);
    FILE *file = fopen(path, "r");
    while (file && found == SIZE_MAX && fgets(line, sizeof line, file))
        if (strncmp(line, label, length) == 0 && sscanf(line + length, "%llu", &value) == 1)
            found = (size_t)value;
    if (file) fclose(file);
    return found;
}

size_t host_memory_available(void) {
    size_t kib = system_number("/proc/meminfo", "MemAvailable:");
    size_t system = kib == SIZE_MAX ? SIZE_MAX : kib * 1024;
    size_t container = system_number("/sys/fs/cgroup/memory.max", "");
    size_t used = system_number("/sys/fs/cgroup/memory.stat", "anon "); /* not reclaimable */
    if (container != SIZE_MAX && used != SIZE_MAX) container -= MIN(used, container);
    return MIN(container, system);
}

size_t host_memory_pinnable(void) {
    size_t kib = system_number("/proc/meminfo", "MemTotal:"), available = host_memory_available();
    size_t system = kib == SIZE_MAX ? SIZE_MAX : kib * 1024;
    size_t container = system_number("/sys/fs/cgroup/memory.max", "");
    size_t total = MIN(system, container);
    if (available == SIZE_MAX || total == SIZE_MAX) return available;
    size_t reserve = total / 10 > (size_t)2 << 30 ? total / 10 : (size_t)2 << 30;
    return available > reserve ? available - reserve : 0;
}

void host_memory_copy(void *to, const void *from, size_t bytes) {
    enum { PIECE = 1 << 22 };
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += PIECE)
        memcpy((char *)to + at, (const char *)from + at, bytes - at < PIECE ? bytes - at : PIECE);
}
