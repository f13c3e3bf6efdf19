#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/plain_c.h"
extern "C" {
#include "kernels/comm/binding.h"
#include "kernels/comm/gpus.h"
}

/* Identity of a rank's GPU. */
struct gpu_of_rank {
    int32_t visible, local_size;
    char uuid[16];
};

static struct gpu_of_rank find_gpu(const struct ranks *ranks, int *gpu) {
    struct gpu_of_rank own = {};
    cudaDeviceProp properties;
    int visible = 0;
    own.local_size = ranks->local_size;
    *gpu = 0;
    if (cudaGetDeviceCount(&visible) == cudaSuccess && visible > 0) {
        char bus[32];
        *gpu = ranks->local_rank % visible;
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, *gpu) == cudaSuccess) binding_near(bus, "/sys");
        if (cudaGetDeviceProperties(&properties, *gpu) == cudaSuccess) {
            own.visible = visible;
            memcpy(own.uuid, properties.uuid.bytes, sizeof own.uuid);
        }
    }
    cudaGetLastError(); /* clears the error; opening the device reports it */
    return own;
}

static int check_distinct(const struct gpu_of_rank *all, int size, struct error *error) {
    for (int b = 1; b < size; b++)
        for (int a = 0; a < b; a++)
            if (all[a].visible && all[b].visible &&
                memcmp(all[a].uuid, all[b].uuid, sizeof all[a].uuid) == 0)
                return fail(error,
                            "device \"cuda\": ranks %d and %d would share a GPU: there are %d "
                            "ranks on that machine, and rank %d sees %d GPU%s; start one rank for "
                            "each GPU, or give each a GPU of its own in CUDA_VISIBLE_DEVICES, or "
                            "use --device cpu",
                            a, b, all[b].local_size, b, all[b].visible,
                            all[b].visible == 1 ? "" : "s");
    return 0;
}

int gpus_choose(const struct ranks *ranks, int *gpu, struct error *error) {
    *gpu = 0;
    if (ranks->size == 1) return 0;
    struct gpu_of_rank own = find_gpu(ranks, gpu);
    struct gpu_of_rank *all = (struct gpu_of_rank *)calloc((size_t)ranks->size, sizeof *all);
    if (!all) ranks_abort(ranks, 1);
    ranks_gather(ranks, all, &own, sizeof own);
    int failed = check_distinct(all, ranks->size, error);
    free(all);
    return failed;
}
