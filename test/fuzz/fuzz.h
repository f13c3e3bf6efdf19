/* Shared by the fuzzers. Each is one file, fuzz_CONCEPT.c, that libFuzzer calls with any bytes;
 * `make fuzz` builds and runs them all. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/util/error.h"
#include "data/util/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static inline void require(int condition) {
    if (!condition) abort();
}

/* A message must name a file, and contain no terminal control characters, wherever its names
 * come from. */
static inline void require_message(const struct error *error, const char *path) {
    struct error masked = *error;
    require(strstr(error->text, path) != NULL);
    require(strcmp(utf8_mask(masked.text), error->text) == 0);
}

/* Returns the descriptor of a file in memory, which lasts until it is closed. */
static inline int fuzz_file(char path[64], const void *bytes, size_t size) {
    const int fd = memfd_create("fuzz", 0);
    require(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
