/* Waits for the signal handlers of a child process that runs another program. */
#pragma once

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* True if the child has a handler for the signal. Before its exec it has those of the parent. */
static inline bool catches(pid_t child, int number) {
    char name[64], line[256], ours[512] = "", theirs[512] = "";
    unsigned long long mask = 0;
    snprintf(name, sizeof name, "/proc/%d/exe", (int)child);
    if (readlink("/proc/self/exe", ours, sizeof ours - 1) < 0) return false;
    if (readlink(name, theirs, sizeof theirs - 1) < 0 || strcmp(ours, theirs) == 0) return false;
    snprintf(name, sizeof name, "/proc/%d/status", (int)child);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "SigCgt: %llx", &mask) == 1) break;
    if (file) fclose(file);
    return mask >> (number - 1) & 1;
}

static inline void wait_until_caught(pid_t child, int number, bool caught) {
    for (int i = 0; i < 60000 && catches(child, number) != caught; i++) usleep(1000);
    cr_assert_eq(catches(child, number), caught, "signal %d", number);
}
