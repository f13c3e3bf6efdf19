#include "kernels/backend_open.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/waiting.h"
#include "kernels/ranks/collectives.h"
#include "kernels/ranks/cores.h"
#include "kernels/ranks/mpi.h"
#ifdef WITH_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

#ifndef WITH_CUDA
static int cuda_backend_open(struct backend *be, const struct backend_options *options,
                             struct error *error) {
    (void)be;
    (void)options;
    fail(error,
         "device \"cuda\": this program was built without CUDA; use --device cpu, or build it "
         "where nvcc is");
    return RESULT_NONE;
}
#endif

void backend_prepare_process(char **argv) {
    cpu_wait_politely(argv);
}

const char *backend_cpu_level(char *names, size_t size, struct error *error) {
    const struct cpu_level *level = cpu_level_choose(NULL, error);
    cpu_level_names(names, size);
    return level ? level->full_name : NULL;
}

/* All ranks must have opened a device, of one kind. */
static int compare_devices(const struct backend *be, const struct ranks *ranks, int status,
                           struct error *error) {
    if (ranks_agree(ranks, status, error)) return -1;
    enum backend_kind kind = be->device.kind;
    ranks_broadcast(ranks, &kind, sizeof kind);
    if (kind != be->device.kind)
        status = fail(error,
                      "this machine's device is %s, that of rank 0 is not\nset device to what all "
                      "of them have",
                      be->device.name);
    return ranks_agree(ranks, status, error);
}

static int open_together(struct backend *be, const struct backend_options *options, int status,
                         struct error *error) {
    const struct ranks *ranks = options->ranks;
    bool opened = status == 0;
    status = compare_devices(be, ranks, status, error);
    if (opened) be->collectives = &collectives_alone;
    if (status == 0 && be->device.kind == BACKEND_CPU) {
        const struct cpu_operations *level = cpu_level_choose(NULL, error)->operations;
        const struct collectives *collectives =
            mpi_collectives(ranks, &(struct mpi_arithmetic){level->widen, level->store});
        if (collectives) be->collectives = collectives;
        else status = fail(error, "out of memory");
    } else if (status == 0) status = fail(error, "several ranks on GPUs: not yet");
    status = ranks_agree(ranks, status, error);
    if (status && opened) backend_close(be);
    return status;
}

/* This rank's share of the cores; 0 where there is one rank, or where the user has said it. */
static int threads_of_rank(const struct backend_options *options) {
    const struct ranks *ranks = options->ranks;
    if (!ranks || ranks->size == 1) return options->threads;
    int cores = ranks_cores(ranks);
    if (options->threads > 0) return options->threads;
    return getenv("OMP_NUM_THREADS") ? 0 : cores;
}

int backend_open(struct backend *be, const struct backend_options *options, struct error *error) {
    int status = RESULT_NONE; /* no GPU */
    struct backend_options of_rank = *options;
    of_rank.threads = threads_of_rank(options);
    if (options->device != DEVICE_CPU) status = cuda_backend_open(be, &of_rank, error);
    if (status == RESULT_NONE && options->device != DEVICE_CUDA)
        status = cpu_backend_open(be, &of_rank, error);
    if (options->ranks && options->ranks->size > 1)
        return open_together(be, options, status ? -1 : 0, error);
    be->collectives = &collectives_alone;
    return status ? -1 : 0;
}
