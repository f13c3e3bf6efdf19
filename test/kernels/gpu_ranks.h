/* Ranks with an emulated GPU each, and arrays of small integers on those, whose sums are exact in
 * every dtype and any order. What must hold is checked with RANK_CHECK. */
#pragma once

#include "kernels/backend.h"
#include "test/kernels/forked_ranks.h"

/* backend_open for these ranks. */
int gpu_rank_try(struct backend *be, const struct ranks *ranks, enum device device,
                 struct error *error);

/* Each rank has a GPU of its own in one machine. */
void gpu_rank_open(struct backend *be, const struct ranks *ranks);

/* There must have been no failure, and nothing that the stand-in for NCCL objects to. */
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
 * allow: what does not wait finds poison. */
void gpu_array_load(struct backend *be, int slot, const struct gpu_array *a, int rank, int salt);

/* values = what is on the device. */
void gpu_array_read(struct backend *be, const struct gpu_array *a);

/* values must be the sums over all ranks: in this rank's part, or everywhere. */
void gpu_array_check_own(const struct ranks *ranks, const struct gpu_array *a, int salt);
void gpu_array_check_all(const struct ranks *ranks, const struct gpu_array *a, int salt);
