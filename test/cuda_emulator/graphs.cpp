/* CUDA graphs: recorded on one stream, instantiated, updated, launched.
 *
 * Recorded work runs when the graph is launched and not before, so memory that it writes is
 * unchanged until then. As on a GPU, a node stores the values of its parameters, not the data
 * they point to. The nodes of a graph run in the order of recording; waits for other streams are
 * not emulated and invalidate the graph. */
#include "test/cuda_emulator/graphs.h"

#include <stdio.h>
#include <vector>

#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/machine.h"

namespace emu {

struct node {
    const char *what;
    const void *identity;
    std::function<void(cudaStream_t)> run;
};

struct graph {
    std::vector<node> nodes;
};

static graph *recorded; /* NULL: none is recorded */
static cudaStream_t recorded_on;
static bool spoiled;

bool recording(cudaStream_t stream) {
    return recorded && stream == recorded_on;
}

void record(const char *what, const void *identity, std::function<void(cudaStream_t)> run) {
    recorded->nodes.push_back({what, identity, run});
}

bool spoils_recording(const char *call) {
    if (!recorded) return false;
    char text[160];
    snprintf(text, sizeof text, "%s while a graph is recorded", call);
    runtime_error(cudaErrorStreamCaptureUnsupported, text);
    spoiled = true;
    return true;
}

bool spoils_recording_on(cudaStream_t stream, const char *call) {
    return recording(stream) && spoils_recording(call);
}

static bool alike(const graph &a, const graph &b) {
    if (a.nodes.size() != b.nodes.size()) return false;
    for (size_t i = 0; i < a.nodes.size(); i++)
        if (a.nodes[i].what != b.nodes[i].what || a.nodes[i].identity != b.nodes[i].identity)
            return false;
    return true;
}

static cudaError_t told_to_fail(const char *call, cudaError_t error) {
    char text[96];
    snprintf(text, sizeof text, "%s was told to fail", call);
    return runtime_error(error, text);
}

} // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (must_fail("cudaStreamBeginCapture"))
        return told_to_fail("cudaStreamBeginCapture", cudaErrorUnknown);
    if (recorded || !stream)
        return runtime_error(cudaErrorStreamCaptureUnsupported, "cudaStreamBeginCapture");
    recorded = new graph();
    recorded_on = stream;
    spoiled = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    *out = NULL;
    if (!recording(stream))
        return runtime_error(cudaErrorIllegalState, "cudaStreamEndCapture: nothing is recorded");
    graph *done = recorded;
    recorded = NULL;
    bool fails = must_fail("cudaStreamEndCapture");
    if (!spoiled && !fails) {
        *out = (cudaGraph_t)done;
        return cudaSuccess;
    }
    delete done;
    return fails ? told_to_fail("cudaStreamEndCapture", cudaErrorUnknown)
                 : runtime_error(cudaErrorStreamCaptureInvalidated, "cudaStreamEndCapture");
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t from,
                                          unsigned long long) {
    if (must_fail("cudaGraphInstantiate"))
        return told_to_fail("cudaGraphInstantiate", cudaErrorMemoryAllocation);
    *out = (cudaGraphExec_t) new graph(*(const graph *)from);
    return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t to, cudaGraph_t from,
                                cudaGraphExecUpdateResultInfo *result) {
    bool fits =
        alike(*(const graph *)to, *(const graph *)from) && !must_fail("cudaGraphExecUpdate");
    *result = {};
    result->result = fits ? cudaGraphExecUpdateSuccess : cudaGraphExecUpdateErrorTopologyChanged;
    if (!fits) return cudaErrorGraphExecUpdateFailure; /* not a mistake */
    *(graph *)to = *(const graph *)from;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (must_fail("cudaGraphLaunch")) return told_to_fail("cudaGraphLaunch", cudaErrorUnknown);
    if (spoils_recording("cudaGraphLaunch")) return cudaErrorStreamCaptureUnsupported;
    for (const node &n : ((const graph *)exec)->nodes) n.run(stream);
    count_graph_launch();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t from) {
    delete (graph *)from;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    delete (graph *)exec;
    return cudaSuccess;
}

} // extern "C"
