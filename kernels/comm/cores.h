/* Share of its machine's cores that a rank may use. */
#pragma once

#include "kernels/ranks.h"

/* Returns the number of threads that a rank should compute with: the cores that it may run on, each
 * divided by the number of ranks that may run there. This covers launchers that bind ranks to cores
 * of their own, launchers that do not, and containers with a part of the machine. At least 1. All
 * ranks must call it. */
int ranks_cores(const struct ranks *ranks);
