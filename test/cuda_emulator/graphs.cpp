/* CUDA graphs: recorded on one stream, instantiated, launched again and again.
 *
 * Recorded work runs when the graph is launched and not before, so memory that it writes is
 * unchanged until then. As on a GPU, a node stores the values of its parameters, not the data
 * they point to: launching a graph after that memory was freed is an error.
 *
 * A stream that waits for an event of the recording joins it (a fork), and must be waited for by
 * the first stream before the recording ends (a join). Nodes are queued in the order of recording,
 * those of other streams on streams of the graph's own, which lag as all do. */
#include "test/cuda_emulator/graphs.h"

#include <set>
#include <stdio.h>
#include <string.h>
#include <vector>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/streams.h"

namespace emu {

enum node_kind { WORK, MARK, WAIT };

/* Work, or an event recorded or waited for, of one of the streams: 0 is that of the launch. */
struct node {
    node_kind kind;
    size_t stream;
    std::function<void(cudaStream_t)> run; /* WORK */
    size_t mark;                           /* number of the event */
};

/* A stream of the recording. */
struct participant {
    cudaStream_t handle;
    size_t nodes, joined; /* number of its nodes, and of those that the first stream waits for */
};

/* An event of the recording, and the number of its stream's nodes up to it. */
struct mark {
    size_t stream, nodes;
};

struct graph {
    std::vector<node> nodes;
    size_t marks;
    std::vector<cudaStream_t> streams; /* its own, made for the first launch */
    size_t participants;
    std::vector<const char *> pointers; /* in the arguments of all nodes */
    const void *lost;                   /* one of them, whose memory was freed; else NULL */
};

static graph *recorded;                       /* NULL: none is recorded */
static std::set<graph *> instances;           /* all that can be launched */
static std::vector<participant> participants; /* streams of the recording, in order of joining it */
static std::vector<mark> marks;
static uint64_t recordings; /* the number of this one, from 1 */
static bool spoiled;

/* Returns the number of a stream in the recording; that of all if it takes no part. */
static size_t participant_of(cudaStream_t stream) {
    size_t i = 0;
    while (i < participants.size() && participants[i].handle != stream) i++;
    return i;
}

bool recording(cudaStream_t stream) {
    return recorded && participant_of(stream) < participants.size();
}

static void append(size_t stream, node_kind kind, size_t number) {
    recorded->nodes.push_back({kind, stream, nullptr, number});
    participants[stream].nodes++;
}

void record_event(cudaStream_t stream, event *e) {
    size_t at = participant_of(stream);
    append(at, MARK, marks.size());
    e->on = NULL;
    e->graph = recordings;
    e->mark = (int)marks.size();
    marks.push_back({at, participants[at].nodes});
}

cudaError_t record_wait(cudaStream_t stream, const event *e) {
    if (!recorded || e->graph != recordings) {
        if (!spoils_recording_on(stream, "cudaStreamWaitEvent of an event from elsewhere"))
            runtime_error(cudaErrorStreamCaptureIsolation, "cudaStreamWaitEvent");
        return cudaErrorStreamCaptureIsolation;
    }
    size_t at = participant_of(stream);
    const mark &seen = marks[(size_t)e->mark];
    if (at == participants.size()) participants.push_back({stream, 0, 0});
    append(at, WAIT, (size_t)e->mark);
    participant *waited_for = &participants[seen.stream];
    if (at == 0 && waited_for->joined < seen.nodes) waited_for->joined = seen.nodes;
    return cudaSuccess;
}

void record(cudaStream_t stream, std::function<void(cudaStream_t)> run, const void *arguments,
            size_t bytes) {
    append(participant_of(stream), WORK, 0);
    recorded->nodes.back().run = run;
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

/* Queues the nodes. */
static void run_nodes(graph *instance, cudaStream_t stream) {
    std::vector<event> events(instance->marks);
    while (instance->streams.size() + 1 < instance->participants) {
        cudaStream_t own = NULL;
        cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
        instance->streams.push_back(own);
    }
    for (const node &n : instance->nodes) {
        cudaStream_t on = n.stream ? instance->streams[n.stream - 1] : stream;
        switch (n.kind) {
        case WORK: n.run(on); break;
        case MARK:
            events[n.mark].on = stream_of(on);
            events[n.mark].number = next_number();
            break;
        case WAIT: cudaStreamWaitEvent(on, (cudaEvent_t)&events[n.mark], 0); break;
        }
    }
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
    recordings++;
    participants.assign(1, {stream, 0, 0});
    marks.clear();
    spoiled = false;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    *out = NULL;
    if (!recording(stream) || participant_of(stream) != 0)
        return runtime_error(cudaErrorIllegalState, "cudaStreamEndCapture: nothing is recorded");
    graph *done = recorded;
    recorded = NULL;
    done->marks = marks.size();
    done->participants = participants.size();
    bool fails = must_fail("cudaStreamEndCapture"), unjoined = false;
    for (size_t i = 1; i < participants.size(); i++)
        unjoined = unjoined || participants[i].joined < participants[i].nodes;
    if (!spoiled && !fails && !unjoined) {
        *out = (cudaGraph_t)done;
        return cudaSuccess;
    }
    delete done;
    if (fails) return told_to_fail("cudaStreamEndCapture", cudaErrorUnknown);
    return unjoined ? runtime_error(cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture")
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
    graph *instance = (graph *)exec;
    if (instance->lost)
        return runtime_error(cudaErrorInvalidValue, "cudaGraphLaunch: memory of a node was freed");
    uint64_t host_launches = stats.host_launches;
    run_nodes(instance, stream);
    stats.host_launches = host_launches + 1;
    stats.graph_launches++;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t from) {
    delete (graph *)from;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    graph *instance = (graph *)exec;
    instances.erase(instance);
    for (cudaStream_t stream : instance->streams) cudaStreamDestroy(stream);
    delete instance;
    return cudaSuccess;
}

} // extern "C"
