/* CUDA graphs: recorded work runs when the graph is launched, with the recorded arguments (also
 * on a GPU). On the emulator: calls that invalidate a graph. */
#include "test/cuda_emulator/test_emulator.h"

enum { GRAPH_COUNT = 64 };

static __global__ void set_kernel(int *out, int what) {
    out[threadIdx.x] += what;
}
static __global__ void double_kernel(int *out) {
    out[threadIdx.x] *= 2;
}

struct tape {
    cudaStream_t stream;
    int *memory; /* device */
    cudaGraphExec_t exec;
};

/* Records a graph: fill with 0, add, and `doublings` more kernels. Returns NULL if recording
 * failed. */
static cudaGraph_t record(const tape *t, int what, int doublings, bool spoil = false) {
    cudaGraph_t graph = NULL;
    CHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaMemsetAsync(t->memory, 0, GRAPH_COUNT * sizeof(int), t->stream) == cudaSuccess);
    LAUNCH(set_kernel, 1, GRAPH_COUNT, 0, t->stream, t->memory, what);
    for (int i = 0; i < doublings; i++)
        LAUNCH(double_kernel, 1, GRAPH_COUNT, 0, t->stream, t->memory);
    if (spoil) CHECK(cudaStreamSynchronize(t->stream) != cudaSuccess);
    CHECK((cudaStreamEndCapture(t->stream, &graph) == cudaSuccess) == !spoil);
    CHECK(!graph == spoil);
    if (spoil) cudaGetLastError();
    return graph;
}

static int first_value(const tape *t) {
    int values[GRAPH_COUNT];
    CHECK(cudaStreamSynchronize(t->stream) == cudaSuccess);
    CHECK(cudaMemcpy(values, t->memory, sizeof values, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (int i = 1; i < GRAPH_COUNT; i++) CHECK(values[i] == values[0]);
    return values[0];
}

static bool updates(const tape *t, cudaGraph_t graph) {
    cudaGraphExecUpdateResultInfo result;
    bool done = cudaGraphExecUpdate(t->exec, graph, &result) == cudaSuccess;
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    cudaGetLastError();
    return done;
}

static tape open_tape() {
    tape t = {};
    CHECK(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc((void **)&t.memory, GRAPH_COUNT * sizeof(int)) == cudaSuccess);
    CHECK(cudaMemset(t.memory, 1, GRAPH_COUNT * sizeof(int)) == cudaSuccess);
    return t;
}

static void close_tape(const tape *t) {
    CHECK(cudaFree(t->memory) == cudaSuccess && cudaStreamDestroy(t->stream) == cudaSuccess);
}

void test_graphs() {
    tape t = open_tape();
    cudaGraph_t graph = record(&t, 7, 1);
    CHECK(first_value(&t) == 0x01010101); /* nothing has run yet */
    CHECK(cudaGraphInstantiateWithFlags(&t.exec, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(cudaGraphLaunch(t.exec, t.stream) == cudaSuccess);
    CHECK(first_value(&t) == 14);
    CHECK(updates(&t, record(&t, 5, 1))); /* another argument */
    CHECK(first_value(&t) == 14);
    CHECK(cudaGraphLaunch(t.exec, t.stream) == cudaSuccess);
    CHECK(first_value(&t) == 10);
    CHECK(!updates(&t, record(&t, 5, 2))); /* one more kernel */
    CHECK(cudaGraphLaunch(t.exec, t.stream) == cudaSuccess);
    CHECK(first_value(&t) == 10);
    CHECK(cudaGraphExecDestroy(t.exec) == cudaSuccess);
    close_tape(&t);
}

#ifndef __CUDACC__
/* Calls that are forbidden on a stream while a graph is recorded. */
void test_spoiled_graphs() {
    tape t = open_tape();
    cudaEvent_t event;
    cudaGraph_t graph;
    int values[GRAPH_COUNT];
    CHECK(cudaEventCreate(&event) == cudaSuccess && cudaEventRecord(event, NULL) == cudaSuccess);
    record(&t, 7, 1, true);
    CHECK(first_value(&t) == 0x01010101);
    for (int call = 0; call < 4; call++) {
        CHECK(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        cudaError_t said = call == 0   ? cudaStreamWaitEvent(t.stream, event, 0)
                           : call == 1 ? cudaEventRecord(event, t.stream)
                           : call == 2 ? cudaDeviceSynchronize()
                                       : cudaMemcpyAsync(values, t.memory, sizeof values,
                                                         cudaMemcpyDeviceToHost, t.stream);
        CHECK(said != cudaSuccess);
        CHECK(cudaStreamEndCapture(t.stream, &graph) != cudaSuccess && !graph);
    }
    CHECK(cudaStreamEndCapture(t.stream, &graph) != cudaSuccess); /* no graph */
    cudaGetLastError();
    CHECK(cudaEventDestroy(event) == cudaSuccess);
    close_tape(&t);
}
#endif
