/* Which share of its machine's cores a rank may use. */
#pragma once

#include "kernels/ranks.h"

/* How many threads a rank should compute with: the cores that it may run on, each divided by how
 * many ranks may run there. So it follows a launcher that binds ranks to cores of their own, one
 * that does not, and a container that has a part of the machine. At least 1. All ranks call it. */
int ranks_cores(const struct ranks *ranks);
