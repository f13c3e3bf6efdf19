#if defined EMULATED && defined WITH_NCCL
#include "test/kernels/gpu_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/open/backend_open.h"
#include "test/cuda_emulator/fake_nccl.h"

int gpu_rank_try(struct backend *be, const struct ranks *ranks, enum device device,
                 struct error *error) {
    struct backend_options options = {.device = device, .ranks = ranks};
    return backend_open(be, &options, error);
}

void gpu_rank_open(struct backend *be, const struct ranks *ranks) {
    struct error error = {""};
    char gpus[16];
    snprintf(gpus, sizeof gpus, "%d", ranks->size);
    setenv("CUDA_EMULATOR_DEVICES", gpus, 1);
    fake_nccl_patience(20);
    if (gpu_rank_try(be, ranks, DEVICE_CUDA, &error)) fprintf(stderr, "%s\n", error.text);
    RANK_CHECK(ranks, error.text[0] == 0);
}

void gpu_rank_close(struct backend *be, const struct ranks *ranks) {
    if (be->failure.text[0]) fprintf(stderr, "%s\n", be->failure.text);
    RANK_CHECK(ranks, be->failure.text[0] == 0);
    backend_close(be);
    RANK_CHECK(ranks, be->failure.text[0] == 0);
    RANK_CHECK(ranks, fake_nccl_counts()->mistakes == 0 && fake_nccl_counts()->alive == 0);
}

size_t gpu_array_bytes(const struct gpu_array *a) {
    return (size_t)a->count * dtype_bytes(a->dtype);
}

struct gpu_array gpu_array_make(struct backend *be, enum dtype dtype, int64_t count) {
    struct gpu_array a = {dtype, count, NULL, NULL, NULL};
    a.device = backend_allocate(be, gpu_array_bytes(&a));
    a.host = backend_host_allocate(be, gpu_array_bytes(&a));
    a.values = calloc((size_t)count + 1, sizeof *a.values);
    return a;
}

void gpu_array_free(struct backend *be, struct gpu_array *a) {
    backend_release(be, a->device);
    backend_host_release(be, a->host);
    free(a->values);
}

static float value_of(int rank, int64_t i, int salt) {
    return (float)((i * 7 + rank * 3 + salt) % 11 - 4);
}

static float sum_of(int size, int64_t i, int salt) {
    float sum = 0;
    for (int rank = 0; rank < size; rank++) sum += value_of(rank, i, salt);
    return sum;
}

void gpu_array_load(struct backend *be, int slot, const struct gpu_array *a, int rank, int salt) {
    for (int64_t i = 0; i < a->count; i++) a->values[i] = value_of(rank, i, salt);
    dtype_store(a->host, a->dtype, 0, a->values, (size_t)a->count);
    backend_send(be, slot, a->device, a->host, gpu_array_bytes(a));
}

void gpu_array_read(struct backend *be, const struct gpu_array *a) {
    backend_fetch(be, 0, a->host, a->device, gpu_array_bytes(a));
    backend_fetched(be, 0);
    const float *read = dtype_widen(a->values, a->host, a->dtype, 0, (size_t)a->count);
    if (read != a->values) memcpy(a->values, read, (size_t)a->count * sizeof *read);
}

void gpu_array_check_own(const struct ranks *ranks, const struct gpu_array *a, int salt) {
    struct rank_part part = ranks_part(a->count, ranks->size, ranks->rank);
    for (int64_t i = part.first; i < part.first + part.count; i++)
        RANK_CHECK(ranks, a->values[i] == sum_of(ranks->size, i, salt));
}

void gpu_array_check_all(const struct ranks *ranks, const struct gpu_array *a, int salt) {
    for (int64_t i = 0; i < a->count; i++)
        RANK_CHECK(ranks, a->values[i] == sum_of(ranks->size, i, salt));
}

#else
typedef int no_gpu_ranks;
#endif
