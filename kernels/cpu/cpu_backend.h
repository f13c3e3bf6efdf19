/* The backend that computes on the processor. */
#ifndef KERNELS_CPU_CPU_BACKEND_H
#define KERNELS_CPU_CPU_BACKEND_H

#include "kernels/backend.h"

/* Returns -1 with a message of at most BACKEND_ERROR_MAX bytes. */
int cpu_backend_open(struct backend *be, const struct backend_options *options, char *error);

#endif
