/* Interface of the CUDA backend, for plain C. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"

/* Opens device options->gpu among the devices visible by CUDA_VISIBLE_DEVICES, and sets it for the
 * calling thread, which must be the one that uses the backend. Returns RESULT_NONE with a message
 * if there is no GPU or no NVIDIA driver; -1 with a message that names the remedy if there is one
 * that cannot be used. */
int cuda_backend_open(struct backend *be, const struct backend_options *options,
                      struct error *error);
