/* Ranks without a launcher or MPI: processes forked from a test, whose host traffic goes through
 * memory that they share. */
#pragma once

#include "kernels/ranks.h"

enum { FORKED_RANKS_MOST = 8 };

/* Runs body as each of `size` ranks, in processes of their own, which end when it returns; waits
 * for all. Returns how many did not end well: those for which a check failed, that were aborted, or
 * that took longer than a minute. */
int forked_ranks(int size, void (*body)(const struct ranks *ranks, const void *given),
                 const void *given);

/* In a body, where the test's framework cannot be used. */
#define RANK_CHECK(ranks, condition) \
    forked_rank_check(ranks, condition, __FILE__, __LINE__, #condition)
void forked_rank_check(const struct ranks *ranks, bool good, const char *file, int line,
                       const char *text);
