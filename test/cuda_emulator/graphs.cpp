/* CUDA graphs: recorded on one stream, instantiated, launched again and again.
 *
 * Recorded work runs when the graph is launched and not before, so memory that it writes is
 * unchanged until then. As on a GPU, a node stores the values of its parameters, not the data
 * they point to: launching a graph after that memory was freed is an error. The nodes of a graph
 * run in the order of recording; waits for other streams are not emulated and invalidate the
 * graph. */
#include "test/cuda_emulator/graphs.h"

#include <set>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "test/cuda_emulator/fibers.h"

namespace emu {

struct graph {
    std::vector<std::function<void(cudaStream_t)>> nodes;
    std::vector<const char *> pointers; /* in the arguments of all nodes */
    const void *lost;                   /* one of them, whose memory was freed; else NULL */
};

static graph *recorded;             /* NULL: none is recorded */
static std::set<graph *> instances; /* all that can be launched */
static cudaStream_t recorded_on;
static bool spoiled;

bool recording(cudaStream_t stream) {
    return recorded && stream == recorded_on;
}

void record(std::function<void(cudaStream_t)> run, const void *arguments, size_t bytes) {
    recorded->nodes.push_back(run);
    for (size_t at = 0; at + sizeof(char *) <= bytes; at += sizeof(char *)) {
        const char *word;
        memcpy(&word, (const char *)arguments + at, sizeof word);
        if (device_range(word, 1) || pinned_range(word, 1)) recorded->pointers.push_back(word);
    }
}

void graphs_lose_memory(const void *p, size_t bytes) {
    for (graph *instance : instances)
        for (const char *pointer : instance->pointers)
            if (pointer >= (const char *)p && pointer < (const char *)p + bytes)
                instance->lost = pointer;
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
    stats.recordings++;
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
    graph *instance = new graph(*(const graph *)from);
    instances.insert(instance);
    *out = (cudaGraphExec_t)instance;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    if (must_fail("cudaGraphLaunch")) return told_to_fail("cudaGraphLaunch", cudaErrorUnknown);
    if (spoils_recording("cudaGraphLaunch")) return cudaErrorStreamCaptureUnsupported;
    const graph *instance = (const graph *)exec;
    if (instance->lost)
        return runtime_error(cudaErrorInvalidValue, "cudaGraphLaunch: memory of a node was freed");
    uint64_t host_launches = stats.host_launches;
    for (const std::function<void(cudaStream_t)> &run : instance->nodes) run(stream);
    stats.host_launches = host_launches + 1;
    stats.graph_launches++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t from) {
    delete (graph *)from;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    instances.erase((graph *)exec);
    delete (graph *)exec;
    return cudaSuccess;
}

} // extern "C"
