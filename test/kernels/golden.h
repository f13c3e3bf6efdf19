/* The tensors of test/golden/ops.safetensors or, for names FILE:NAME, of FILE.safetensors there,
 * for use with check.h. */
#pragma once

#include "test/kernels/check.h"

/* Returns a tensor of the fixture, in float32 or bfloat16, as an input, or as the initial value of
 * an output that the operation changes. Rank 2 is used as rows x columns; rank 1 stays rank 1. */
struct tensor golden_tensor(struct check *c, enum check_use use, const char *name);

/* Returns its values on the host. */
double *golden_values(struct check *c, const char *name);

/* Returns an int32 tensor of the fixture in backend memory; *host is set to its values unless
 * host is NULL. */
const int32_t *golden_tokens(struct check *c, const char *name, const int32_t **host);

/* Compares with the tensor of that name, within a tolerance of tolerances.c. */
void golden_close(struct check *c, const char *kind, const struct tensor *got, const char *name,
                  const double *magnitude);
