/* Opens a device as a backend. Only this pair of files includes all backends. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"

/* Sets the waiting policy of threads, for which it may execute the program once more
 * (kernels/cpu/waiting.h). Must be called first in a main() that opens a backend. */
void backend_prepare_process(char **argv);

/* Returns the CPU level in use, "x86-64-v3", and writes all level names to names, of size bytes:
 * see kernels/cpu/level.h. Returns NULL with a message if MANTISSA_CPU is wrong or the processor is
 * too old. */
const char *backend_cpu_level(char *names, size_t size, struct error *error);

/* Opens a device. DEVICE_AUTO takes a GPU if the machine has one; it fails if that GPU does not
 * work, because a slow run on the CPU might not be noticed for hours. Returns -1 with a message.
 *
 * With several ranks all must call it, and if one fails all fail. Each rank takes a GPU of its own.
 * `be` must not move until it is closed. */
int backend_open(struct backend *be, const struct backend_options *options, struct error *error);