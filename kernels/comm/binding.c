#include "kernels/comm/binding.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { PATH_BYTES = 512, LIST_BYTES = 4096 };

/* Reads a list of the kernel, "0-31,64-95". Returns false if it is malformed. */
static bool read_list(cpu_set_t *cores, const char *text) {
    CPU_ZERO(cores);
    while (*text && *text != '\n') {
        char *end;
        long first = strtol(text, &end, 10), last = first;
        if (end == text || first < 0) return false;
        if (*end == '-') {
            text = end + 1;
            last = strtol(text, &end, 10);
            if (end == text) return false;
        }
        for (long core = first; core <= last && core < CPU_SETSIZE; core++)
            CPU_SET((size_t)core, cores);
        text = *end == ',' ? end + 1 : end;
        if (text == end && *text && *text != '\n') return false;
    }
    return true;
}

/* The kernel writes addresses in lower case. */
static bool read_cores(cpu_set_t *cores, const char *address, const char *sysfs) {
    char path[PATH_BYTES], list[LIST_BYTES];
    int used = snprintf(path, sizeof path, "%s/bus/pci/devices/", sysfs);
    for (; *address && used < PATH_BYTES - 1; address++)
        path[used++] = (char)tolower((unsigned char)*address);
    if (used >= PATH_BYTES - 1) return false;
    snprintf(path + used, (size_t)(PATH_BYTES - used), "/local_cpulist");
    FILE *file = fopen(path, "r");
    bool good = file && fgets(list, sizeof list, file) && read_list(cores, list);
    if (file) fclose(file);
    return good;
}

bool binding_near(const char *address, const char *sysfs) {
    cpu_set_t near, own;
    if (!read_cores(&near, address, sysfs) || sched_getaffinity(0, sizeof own, &own)) return false;
    CPU_AND(&near, &near, &own);
    return CPU_COUNT(&near) > 0 && sched_setaffinity(0, sizeof near, &near) == 0;
}
