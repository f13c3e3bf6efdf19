#include "kernels/ranks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct ranks ranks_alone = {
    .rank = 0, .size = 1, .local_rank = 0, .local_size = 1, .errors = STDERR_FILENO};

void ranks_close(struct ranks *ranks) {
    if (ranks->size > 1) ranks->functions->close(ranks);
    *ranks = ranks_alone;
}

void ranks_gather(const struct ranks *ranks, void *all, const void *own, size_t bytes) {
    if (ranks->size > 1) ranks->functions->gather(ranks, all, own, bytes);
    else memmove(all, own, bytes);
}

void ranks_max_each(const struct ranks *ranks, int64_t *values, int count) {
    int64_t all[8 * RANKS_MAX];
    assert(count <= 8);
    ranks_gather(ranks, all, values, (size_t)count * sizeof *values);
    for (int i = 0; i < ranks->size * count; i++)
        if (all[i] > values[i % count]) values[i % count] = all[i];
}

int64_t ranks_max(const struct ranks *ranks, int64_t value) {
    ranks_max_each(ranks, &value, 1);
    return value;
}

void ranks_barrier(const struct ranks *ranks) {
    ranks_max(ranks, 0);
}

/* Status and message of each rank, gathered by ranks_agree. */
struct outcome {
    int32_t status;
    char text[ERROR_MAX];
};

int ranks_agree(const struct ranks *ranks, int status, struct error *error) {
    if (ranks_max(ranks, status != 0) == 0) return 0;
    if (ranks->size == 1) return -1;
    struct outcome own = {status, ""}, *all = malloc((size_t)ranks->size * sizeof *all);
    if (!all) ranks_abort(ranks, 1);
    if (status) memcpy(own.text, error->text, sizeof own.text);
    ranks_gather(ranks, all, &own, sizeof own);
    int first = 0;
    while (!all[first].status) first++;
    if (first == 0) fail(error, "%s", all[first].text);
    else fail(error, "rank %d: %s", first, all[first].text);
    free(all);
    return -1;
}
