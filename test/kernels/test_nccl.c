/* Several ranks, each with an emulated GPU, over the stand-in for NCCL. */
#if defined EMULATED && defined WITH_NCCL
#include "kernels/ranks/nccl.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend_open.h"
#include "kernels/ranks/collectives.h"
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_nccl.h"
#include "test/kernels/forked_ranks.h"

enum { INVALID_ARGUMENT = 4, SYSTEM_ERROR = 2, REMOTE_ERROR = 6 }; /* ncclResult_t */

static int try_to_open(struct backend *be, const struct ranks *ranks, enum device device,
                       struct error *error) {
    struct backend_options options = {.device = device, .ranks = ranks};
    return backend_open(be, &options, error);
}

/* Each rank has a GPU of its own in one machine. */
static void open_rank(struct backend *be, const struct ranks *ranks) {
    struct error error = {""};
    char gpus[16];
    snprintf(gpus, sizeof gpus, "%d", ranks->size);
    setenv("CUDA_EMULATOR_DEVICES", gpus, 1);
    if (try_to_open(be, ranks, DEVICE_CUDA, &error)) fprintf(stderr, "%s\n", error.text);
    RANK_CHECK(ranks, error.text[0] == 0);
}

static void close_rank(struct backend *be, const struct ranks *ranks) {
    if (be->failure.text[0]) fprintf(stderr, "%s\n", be->failure.text);
    RANK_CHECK(ranks, be->failure.text[0] == 0);
    backend_close(be);
    RANK_CHECK(ranks, be->failure.text[0] == 0);
    RANK_CHECK(ranks, fake_nccl_counts()->mistakes == 0 && fake_nccl_counts()->alive == 0);
}

/* ---- data: small integers, whose sums are exact in every dtype and any order */

struct array {
    enum dtype dtype;
    int64_t count;
    char *device, *host; /* host: pinned */
    float *values;
};

static size_t bytes_of(const struct array *a) {
    return (size_t)a->count * dtype_bytes(a->dtype);
}

static struct array make_array(struct backend *be, enum dtype dtype, int64_t count) {
    struct array a = {dtype, count, NULL, NULL, NULL};
    a.device = backend_allocate(be, bytes_of(&a));
    a.host = backend_host_allocate(be, bytes_of(&a));
    a.values = calloc((size_t)count + 1, sizeof *a.values);
    return a;
}

static void free_array(struct backend *be, struct array *a) {
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

/* Fills the device's memory as late as streams allow: what does not wait finds poison. */
static void load_values(struct backend *be, int slot, const struct array *a, int rank, int salt) {
    for (int64_t i = 0; i < a->count; i++) a->values[i] = value_of(rank, i, salt);
    dtype_store(a->host, a->dtype, 0, a->values, (size_t)a->count);
    struct transfer transfer = {a->device, a->host, bytes_of(a)};
    backend_load(be, slot, &transfer, 1);
}

static void read_values(struct backend *be, const struct array *a) {
    backend_fetch(be, 0, a->host, a->device, bytes_of(a));
    backend_fetched(be, 0);
    const float *read = dtype_widen(a->values, a->host, a->dtype, 0, (size_t)a->count);
    if (read != a->values) memcpy(a->values, read, (size_t)a->count * sizeof *read);
}

static void check_sums(const struct ranks *ranks, const struct array *a, int salt) {
    struct rank_part part = ranks_part(a->count, ranks->size, ranks->rank);
    for (int64_t i = part.first; i < part.first + part.count; i++)
        RANK_CHECK(ranks, a->values[i] == sum_of(ranks->size, i, salt));
}

static void check_all_sums(const struct ranks *ranks, const struct array *a, int salt) {
    for (int64_t i = 0; i < a->count; i++)
        RANK_CHECK(ranks, a->values[i] == sum_of(ranks->size, i, salt));
}

/* ---- what must work */

struct shape {
    enum dtype dtype;
    int64_t count;
};

static void there_and_back(const struct ranks *ranks, const void *given) {
    const struct shape *shape = given;
    struct backend be;
    open_rank(&be, ranks);
    struct array a = make_array(&be, shape->dtype, shape->count);
    for (int salt = 0; salt < 3; salt++) {
        load_values(&be, 0, &a, ranks->rank, salt);
        uint64_t ticket = collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
        collectives_wait(be.collectives, ticket);
        read_values(&be, &a);
        check_sums(ranks, &a, salt);
        ticket = collectives_all_gather(be.collectives, a.device, dtype_bytes(a.dtype), a.count);
        collectives_wait(be.collectives, ticket);
        read_values(&be, &a);
        check_all_sums(ranks, &a, salt);
    }
    RANK_CHECK(ranks, strncmp(be.collectives->description, "NCCL 2.", 7) == 0);
    free_array(&be, &a);
    close_rank(&be, ranks);
}

Test(nccl, sums_reach_their_owners_and_all) {
    static const int64_t counts[] = {1, 127, 128, 256, 257, 383, 384, 512, 1000, 4096, 10007};
    for (int size = 2; size <= 4; size++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
                struct shape shape = {(enum dtype)dtype, counts[i]};
                cr_assert_eq(forked_ranks(size, there_and_back, &shape), 0,
                             "%d ranks, dtype %d, count %d", size, dtype, (int)counts[i]);
            }
}

static void alone(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    open_rank(&be, ranks);
    RANK_CHECK(ranks, be.collectives == &collectives_alone);
    close_rank(&be, ranks);
}

Test(nccl, one_rank_needs_none) {
    cr_assert_eq(forked_ranks(1, alone, NULL), 0);
}

#else
typedef int nothing_to_test;
#endif
