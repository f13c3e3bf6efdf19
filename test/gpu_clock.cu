#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matmul/matmul_plan.h"
#include "test/gpu_clock.h"

static cudaEvent_t events[GPU_MARKS]; /* one benchmark at a time; created at first use */

void gpu_mark(struct backend *be, int mark) {
    if (!events[mark]) cuda_failed(be, cudaEventCreate(&events[mark]), "making an event");
    cuda_failed(be, cudaEventRecord(events[mark], cuda_state(be)->compute), "recording an event");
}

void gpu_wait(struct backend *be) {
    cuda_failed(be, cudaStreamSynchronize(cuda_state(be)->compute), "waiting for the GPU");
}

double gpu_seconds(struct backend *be, int from, int to) {
    float milliseconds = 0;
    cuda_failed(be, cudaEventSynchronize(events[to]), "waiting for an event");
    cuda_failed(be, cudaEventElapsedTime(&milliseconds, events[from], events[to]), "timing");
    return milliseconds * 1e-3;
}

void gpu_copy(struct backend *be, void *to, const void *from, size_t bytes) {
    cuda_failed(be,
                cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_state(be)->compute),
                "copying within the GPU");
}

void gpu_clock_close(void) {
    for (int mark = 0; mark < GPU_MARKS; mark++) {
        if (events[mark]) cudaEventDestroy(events[mark]);
        events[mark] = NULL;
    }
}

void gpu_forget_error(void) {
    cudaGetLastError();
}

void gpu_fuse(struct backend *be, bool on) {
    cuda_state(be)->products->fuses = on;
    cuda_matmul_discard_plans(cuda_state(be)->products);
}
