/* The tensors of test/golden/ops.safetensors, for use on the bench of check.h. */
#pragma once

#include "test/kernels/check.h"

/* A float32 tensor of the fixture, rank 2 as rows x columns (rank 1 stays rank 1), as an input,
 * or as the start of an output that the operation changes. */
struct tensor golden_tensor(struct check *c, enum check_use use, const char *name);

/* Its values, on the host. */
double *golden_values(struct check *c, const char *name);

/* An int32 tensor of the fixture: in backend memory, and on the host if that is not NULL. */
const int32_t *golden_tokens(struct check *c, const char *name, const int32_t **host);

/* Compares with the tensor of that name, with a tolerance of tolerances.c. */
void golden_close(struct check *c, const char *kind, const struct tensor *got, const char *name,
                  const double *magnitude);
