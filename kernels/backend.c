#include "kernels/backend.h"

#include <stdio.h>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/waiting.h"
#ifdef WITH_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

#define X(name)                                                                   \
    static void none_##name(struct backend *be, const struct name##_args *args) { \
        (void)be;                                                                 \
        (void)args;                                                               \
    }
OPERATIONS(X)
#undef X

const struct operations operations_none = {
#define X(name) .name = none_##name,
    OPERATIONS(X)
#undef X
};

#ifndef WITH_CUDA
static int cuda_backend_open(struct backend *be, const struct backend_options *options,
                             char *error) {
    (void)be;
    (void)options;
    snprintf(error, BACKEND_ERROR_MAX,
             "device \"cuda\": this program was built without CUDA; use --device cpu, or build it "
             "where nvcc is");
    return 1;
}
#endif

void backend_prepare_process(char **argv) {
    cpu_wait_politely(argv);
}

const char *backend_cpu_level(char *names, size_t size, char *error) {
    const struct cpu_level *level = cpu_level_choose(NULL, error);
    cpu_level_names(names, size);
    return level ? level->full_name : NULL;
}

int backend_open(struct backend *be, const struct backend_options *options, char *error) {
    int status = 1; /* no GPU */
    if (options->device != DEVICE_CPU) status = cuda_backend_open(be, options, error);
    if (status > 0 && options->device != DEVICE_CUDA) status = cpu_backend_open(be, options, error);
    return status ? -1 : 0;
}

void backend_close(struct backend *be) {
    if (be->workspace) be->release(be, be->workspace);
    be->close(be);
}

void backend_reserve(struct backend *be, size_t bytes) {
    if (bytes > be->workspace_bytes) be->workspace_bytes = bytes;
}

void backend_plan_begin(struct backend *be) {
    be->op = be->plan;
}

int backend_plan_end(struct backend *be, char *error) {
    if (be->workspace) be->release(be, be->workspace);
    be->workspace = be->allocate(be, be->workspace_bytes);
    be->op = be->run;
    if (be->workspace) return 0;
    snprintf(error, BACKEND_ERROR_MAX, "out of memory: no %zu MiB for the workspace",
             be->workspace_bytes >> 20);
    return -1;
}
