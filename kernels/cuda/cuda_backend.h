/* The door to the CUDA backend, for plain C. */
#pragma once

#include "data/base/error.h"
#include "kernels/backend.h"

/* Opens device 0 (CUDA_VISIBLE_DEVICES chooses). Returns RESULT_NONE with a message if there is no GPU, or
 * none that the driver can use; -1 with a message if there is one that cannot be opened. */
int cuda_backend_open(struct backend *be, const struct backend_options *options,
                      struct error *error);
