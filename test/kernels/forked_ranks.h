/* Ranks without a launcher or MPI: processes forked from a test. Their host traffic goes through
 * shared memory. */
#pragma once

#include "kernels/ranks.h"

enum { FORKED_RANKS_MOST = 8 };

/* Runs body as each of `size` ranks in its own process, and waits for all. Returns how many
 * failed: a check failed, the rank was aborted, or it took longer than a minute. */
int forked_ranks(int size, void (*body)(const struct ranks *ranks, const void *given),
                 const void *given);

/* RANK_CHECK is used in a body, where the test framework is not available. */
#define RANK_CHECK(ranks, condition) \
    forked_rank_check(ranks, condition, __FILE__, __LINE__, #condition)
void forked_rank_check(const struct ranks *ranks, bool good, const char *file, int line,
                       const char *text);
