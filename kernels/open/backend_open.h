/* Opens a device as a backend. Only this pair of files includes all backends. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"

/* Must be called first in a main() that opens a backend: may execute the program once more, see
 * kernels/cpu/waiting.h. */
void backend_prepare_process(char **argv);

/* Returns the CPU level in use, "x86-64-v3", and writes all level names to names, of size bytes:
 * see kernels/cpu/level.h. Returns NULL with a message if MANTISSA_CPU is wrong or the processor is
 * too old. */
const char *backend_cpu_level(char *names, size_t size, struct error *error);

/* Opens a device; DEVICE_AUTO takes a GPU if there is one, and fails if it cannot be used, since a
 * run that continued on the CPU would not be noticed for hours. On failure returns -1 with a
 * message.
 * With several ranks all must call it; each takes a GPU of its own, if one fails all fail, and `be`
 * must not move until it is closed. */
int backend_open(struct backend *be, const struct backend_options *options, struct error *error);