/* The backend that computes on the processor. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"

/* Returns -1 with a message. */
int cpu_backend_open(struct backend *be, const struct backend_options *options,
                     struct error *error);
