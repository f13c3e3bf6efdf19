/* The one door to the devices: only this pair of files knows which there are. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"

/* To be called first in a main() that opens a backend: may execute the program once more, see
 * kernels/cpu/waiting.h. */
void backend_prepare_process(char **argv);

/* The level of instructions that a CPU's operations take here, "x86-64-v3", and all that there are,
 * into names of size bytes: see kernels/cpu/level.h. Returns NULL with a message where MANTISSA_CPU
 * is wrong or the processor is too old. */
const char *backend_cpu_level(char *names, size_t size, struct error *error);

/* Opens a device; DEVICE_AUTO takes a GPU if there is one. On failure returns -1 with a message.
 * Several ranks must all call it; each takes a GPU of its own, what goes wrong on one goes wrong on
 * all, and `be` must stay where it is until it is closed. */
int backend_open(struct backend *be, const struct backend_options *options, struct error *error);