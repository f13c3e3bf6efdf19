#include "kernels/backend_open.h"

#include <stdio.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/waiting.h"
#include "kernels/ranks/collectives.h"
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

int backend_open(struct backend *be, const struct backend_options *options, struct error *error) {
    int status = RESULT_NONE; /* no GPU */
    if (options->device != DEVICE_CPU) status = cuda_backend_open(be, options, error);
    if (status == RESULT_NONE && options->device != DEVICE_CUDA)
        status = cpu_backend_open(be, options, error);
    if (status) return -1;
    be->collectives = &collectives_alone;
    return 0;
}
