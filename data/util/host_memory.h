/* Host memory: how much is available, and fast copies of large buffers. */
#pragma once

#include <stddef.h>

/* Returns the bytes of host memory that are still available, or SIZE_MAX if unknown. Linux
 * overcommits memory and kills a process that uses too much, so check before large allocations. The
 * result is MemAvailable, or less if a container's limit is lower. */
size_t host_memory_available(void);

/* Returns the bytes of available host memory that may be pinned: 10 % of the memory, at least 2
 * GiB, stay free for other programs and the page cache. SIZE_MAX if unknown. */
size_t host_memory_pinnable(void);

/* Copies with all OpenMP threads, since one thread alone does not use the full memory bandwidth. */
void host_memory_copy(void *to, const void *from, size_t bytes);
