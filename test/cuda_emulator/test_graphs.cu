/* CUDA graphs: recorded work runs when the graph is launched, with the recorded arguments and with
 * what memory contains by then (also on a GPU). On the emulator: calls that invalidate a graph, and
 * graphs whose memory was freed. */
#include "test/cuda_emulator/test_emulator.h"

enum { GRAPH_COUNT = 64 };

static __global__ void set_kernel(int *out, const int *what, int more) {
    out[threadIdx.x] += *what + more;
}
static __global__ void double_kernel(int *out) {
    out[threadIdx.x] *= 2;
}

struct tape {
    cudaStream_t stream;
    int *memory, *what; /* device */
};

/* Records a graph: fill with 0, add *what + 1, double. Returns NULL if recording failed. */
static cudaGraph_t record(const tape *t, bool spoil = false) {
    int more = 1;
    cudaGraph_t graph = NULL;
    CHECK(cudaStreamBeginCapture(t->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaMemsetAsync(t->memory, 0, GRAPH_COUNT * sizeof(int), t->stream) == cudaSuccess);
    LAUNCH(set_kernel, 1, GRAPH_COUNT, 0, t->stream, t->memory, t->what, more);
    more = 100;
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

static cudaGraphExec_t instance(const tape *t) {
    cudaGraph_t graph = record(t);
    cudaGraphExec_t exec = NULL;
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    return exec;
}

static tape open_tape() {
    tape t = {};
    CHECK(cudaStreamCreateWithFlags(&t.stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc((void **)&t.memory, GRAPH_COUNT * sizeof(int)) == cudaSuccess);
    CHECK(cudaMalloc((void **)&t.what, sizeof(int)) == cudaSuccess);
    CHECK(cudaMemset(t.memory, 1, GRAPH_COUNT * sizeof(int)) == cudaSuccess);
    return t;
}

static void close_tape(const tape *t) {
    CHECK(cudaFree(t->memory) == cudaSuccess && cudaFree(t->what) == cudaSuccess);
    CHECK(cudaStreamDestroy(t->stream) == cudaSuccess);
}

void test_graphs() {
    tape t = open_tape();
    cudaGraphExec_t exec = instance(&t);
    CHECK(first_value(&t) == 0x01010101); /* nothing has run yet */
    for (int what = 5; what < 8; what++) {
        CHECK(cudaMemcpy(t.what, &what, sizeof what, cudaMemcpyHostToDevice) == cudaSuccess);
        CHECK(cudaGraphLaunch(exec, t.stream) == cudaSuccess);
        CHECK(first_value(&t) == 2 * (what + 1));
    }
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    close_tape(&t);
}

/* A copy on another stream, which joins the recording by an event: it comes after a kernel that
 * reads its target, and a kernel that reads the copy waits for it. */
void test_graphs_of_two_streams() {
    tape t = open_tape();
    cudaStream_t other;
    cudaEvent_t begun, copied;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int *pinned = NULL;
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&begun, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaMallocHost((void **)&pinned, sizeof *pinned) == cudaSuccess);
    CHECK(cudaMemset(t.what, 0, sizeof *t.what) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaMemsetAsync(t.memory, 0, GRAPH_COUNT * sizeof(int), t.stream) == cudaSuccess);
    for (int more = 1; more < 100; more += 90) {
        LAUNCH(set_kernel, 1, GRAPH_COUNT, 0, t.stream, t.memory, t.what, more);
        CHECK(cudaEventRecord(begun, t.stream) == cudaSuccess);
        CHECK(cudaStreamWaitEvent(other, begun, 0) == cudaSuccess);
        CHECK(cudaMemcpyAsync(t.what, pinned, sizeof *pinned, cudaMemcpyHostToDevice, other) ==
              cudaSuccess);
        CHECK(cudaEventRecord(copied, other) == cudaSuccess);
        LAUNCH(double_kernel, 1, GRAPH_COUNT, 0, t.stream, t.memory);
        CHECK(cudaStreamWaitEvent(t.stream, copied, 0) == cudaSuccess);
    }
    CHECK(cudaStreamEndCapture(t.stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    CHECK(first_value(&t) == 0x01010101); /* nothing has run yet */
    for (int value = 5, before = 0; value < 8; before = value++) {
        *pinned = value;
        CHECK(cudaGraphLaunch(exec, t.stream) == cudaSuccess);
        CHECK(first_value(&t) == 2 * (2 * (before + 1) + value + 91));
    }
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    CHECK(cudaFreeHost(pinned) == cudaSuccess);
    CHECK(cudaEventDestroy(begun) == cudaSuccess && cudaEventDestroy(copied) == cudaSuccess);
    CHECK(cudaStreamDestroy(other) == cudaSuccess);
    close_tape(&t);
}

#ifndef __CUDACC__
/* A stream that joins a recording must be waited for; a recorded event is one of the graph alone.
 */
void test_unjoined_graphs() {
    tape t = open_tape();
    cudaStream_t other;
    cudaEvent_t event;
    cudaGraph_t graph;
    CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaEventCreate(&event) == cudaSuccess);
    CHECK(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(cudaEventRecord(event, t.stream) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
    CHECK(cudaMemsetAsync(t.memory, 0, sizeof(int), other) == cudaSuccess);
    CHECK(cudaStreamEndCapture(t.stream, &graph) == cudaErrorStreamCaptureUnjoined && !graph);
    CHECK(cudaStreamWaitEvent(other, event, 0) != cudaSuccess);
    CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
    CHECK(cudaEventRecord(event, t.stream) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
    cudaGetLastError();
    CHECK(first_value(&t) == 0x01010101);
    CHECK(cudaEventDestroy(event) == cudaSuccess && cudaStreamDestroy(other) == cudaSuccess);
    close_tape(&t);
}

/* Calls that are forbidden on a stream while a graph is recorded. */
void test_spoiled_graphs() {
    tape t = open_tape();
    cudaEvent_t event;
    cudaGraph_t graph;
    int values[GRAPH_COUNT];
    CHECK(cudaEventCreate(&event) == cudaSuccess && cudaEventRecord(event, NULL) == cudaSuccess);
    record(&t, true);
    CHECK(first_value(&t) == 0x01010101);
    for (int call = 0; call < 3; call++) {
        CHECK(cudaStreamBeginCapture(t.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
        cudaError_t said = call == 0   ? cudaStreamWaitEvent(t.stream, event, 0)
                           : call == 1 ? cudaDeviceSynchronize()
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

/* A graph whose memory was freed, even if later memory has the same address. */
void test_stale_graphs() {
    tape t = open_tape();
    int *unrelated = NULL;
    CHECK(cudaMalloc((void **)&unrelated, sizeof(int)) == cudaSuccess);
    cudaGraphExec_t exec = instance(&t);
    CHECK(cudaFree(unrelated) == cudaSuccess);
    CHECK(cudaGraphLaunch(exec, t.stream) == cudaSuccess);
    int before = first_value(&t);
    CHECK(cudaFree(t.what) == cudaSuccess);
    CHECK(cudaMalloc((void **)&t.what, sizeof(int)) == cudaSuccess);
    CHECK(cudaGraphLaunch(exec, t.stream) != cudaSuccess);
    cudaGetLastError();
    CHECK(first_value(&t) == before);
    CHECK(cudaGraphExecDestroy(exec) == cudaSuccess);
    close_tape(&t);
}
#endif
