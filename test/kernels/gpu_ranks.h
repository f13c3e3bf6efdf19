/* Ranks with an emulated GPU each, and device arrays of small integers, whose sums are exact in
 * every dtype and any order. Checks use RANK_CHECK. */
#pragma once

#include "kernels/backend.h"
#include "test/kernels/forked_ranks.h"

/* Calls backend_open for these ranks. */
int gpu_rank_try(struct backend *be, const struct ranks *ranks, enum device device,
                 struct error *error);

/* Emulates one machine in which each rank has its own GPU. */
void gpu_rank_open(struct backend *be, const struct ranks *ranks);

/* Checks that nothing failed, and that the fake NCCL reported no mistake. */
void gpu_rank_close(struct backend *be, const struct ranks *ranks);

struct gpu_array {
    enum dtype dtype;
    int64_t count;
    char *device, *host; /* [count]; host: pinned */
    float *values;       /* [count] */
};

struct gpu_array gpu_array_make(struct backend *be, enum dtype dtype, int64_t count);
void gpu_array_free(struct backend *be, struct gpu_array *a);
size_t gpu_array_bytes(const struct gpu_array *a);

/* Fills the device's memory with the rank's integers, which depend on salt, as late as streams
 * allow. Reads that do not wait find poison. */
void gpu_array_load(struct backend *be, int slot, const struct gpu_array *a, int rank, int salt);

/* Copies the device's array to values. */
void gpu_array_read(struct backend *be, const struct gpu_array *a);

/* Checks that values are the sums over all ranks: in this rank's part, or everywhere. */
void gpu_array_check_own(const struct ranks *ranks, const struct gpu_array *a, int salt);
void gpu_array_check_all(const struct ranks *ranks, const struct gpu_array *a, int salt);
