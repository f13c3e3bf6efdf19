/* The backend that computes on the processor. */
#ifndef KERNELS_CPU_CPU_BACKEND_H
#define KERNELS_CPU_CPU_BACKEND_H

#include "kernels/backend.h"

/* threads: 0 for all cores. Returns -1 with a message of at most BACKEND_ERROR_MAX bytes. */
int cpu_backend_open(struct backend *be, int threads, char *error);

#endif
