#include "kernels/open/backend_open.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/waiting.h"
#include "kernels/collectives.h"
#include "kernels/comm/cores.h"
#include "kernels/comm/mpi.h"
#ifdef WITH_CUDA
#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/comm/gpus.h"
#include "kernels/comm/nccl.h"
#endif

#ifdef WITH_CUDA
/* Opens a GPU on each rank, then NCCL between them. Returns RESULT_NONE if no rank has a GPU; if
 * one rank fails, all fail. */
static int open_gpu_of_rank(struct backend *be, const struct backend_options *options,
                            struct error *error) {
    const struct ranks *ranks = options->ranks;
    struct backend_options own = *options;
    if (gpus_choose(ranks, &own.gpu, error)) return -1;
    int status = cuda_backend_open(be, &own, error);
    if (ranks_max(ranks, status != RESULT_NONE) == 0) return RESULT_NONE;
    bool opened = status == 0;
    if (opened) be->collectives = &collectives_alone;
    status = ranks_agree(ranks, status, error);
    if (status == 0) status = nccl_collectives_open(be, ranks, error);
    if (status && opened) backend_close(be);
    return status;
}

static int open_cuda(struct backend *be, const struct backend_options *options,
                     struct error *error) {
    if (options->ranks && options->ranks->size > 1) return open_gpu_of_rank(be, options, error);
    int status = cuda_backend_open(be, options, error);
    if (status == 0) be->collectives = &collectives_alone;
    return status;
}
#else
static int open_cuda(struct backend *be, const struct backend_options *options,
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
    cpu_limit_spinning(argv);
}

const char *backend_cpu_level(char *names, size_t size, struct error *error) {
    const struct cpu_level *level = cpu_level_choose(NULL, error);
    cpu_level_names(names, size);
    return level ? level->full_name : NULL;
}

/* Returns this rank's share of the cores; 0 if there is one rank, or if OMP_NUM_THREADS is set. */
static int threads_of_rank(const struct backend_options *options) {
    const struct ranks *ranks = options->ranks;
    if (!ranks || ranks->size == 1) return options->threads;
    int cores = ranks_cores(ranks);
    if (options->threads > 0) return options->threads;
    return getenv("OMP_NUM_THREADS") ? 0 : cores;
}

/* Opens the CPU on each rank, then MPI between them; if one rank fails, all fail. */
static int open_cpu(struct backend *be, const struct backend_options *options,
                    struct error *error) {
    const struct ranks *ranks = options->ranks;
    struct backend_options own = *options;
    own.threads = threads_of_rank(options);
    int status = cpu_backend_open(be, &own, error);
    bool opened = status == 0;
    if (opened) be->collectives = &collectives_alone;
    if (!ranks || ranks->size == 1) return status;
    if (opened) {
        const struct cpu_operations *level = cpu_level_choose(NULL, error)->operations;
        const struct collectives *collectives =
            mpi_collectives(ranks, &(struct mpi_arithmetic){level->widen, level->store});
        if (collectives) be->collectives = collectives;
        else status = fail_memory(error, "communication between ranks");
    }
    status = ranks_agree(ranks, status, error);
    if (status && opened) backend_close(be);
    return status;
}

int backend_open(struct backend *be, const struct backend_options *options, struct error *error) {
    int status = RESULT_NONE; /* no GPU */
    if (options->device != DEVICE_CPU) status = open_cuda(be, options, error);
    if (status == RESULT_NONE && options->device != DEVICE_CUDA)
        status = open_cpu(be, options, error);
    return status ? -1 : 0;
}
