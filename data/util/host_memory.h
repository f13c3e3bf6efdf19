/* The machine's memory: how much is left, and copies of much of it. */
#pragma once

#include <stddef.h>

/* Bytes that can still be had of the host's memory, SIZE_MAX if nobody knows. Linux promises more
 * than there is and kills who uses it, so whoever wants much asks first: what the system could
 * free, or less where a container's limit leaves less. */
size_t host_memory_available(void);

/* memcpy by all threads, as one alone does not keep the memory busy. */
void host_memory_copy(void *to, const void *from, size_t bytes);
