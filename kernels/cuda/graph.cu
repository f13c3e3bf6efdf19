/* Operations of a step as CUDA graphs: recorded, and started by one call.
 *
 * A launch costs the host some microseconds and the GPU one or two between kernels; a step of
 * twelve layers has three hundred. Recording costs the host about as much as launching, but the
 * host is ahead of the GPU anyway. Operations recorded anew may have other arguments (learning
 * rate, batch, seeds): the existing graph is updated with them, as long as the kernels are the
 * same.
 *
 * The first call runs the operations directly, so that kernels are loaded and the library has
 * allocated its memory. If recording or a graph fails, nothing has run yet: the operations then run
 * directly, now and in all later calls. */
#include <assert.h>
#include <stdio.h>

#include "kernels/cuda/cuda.h"

static bool failed(cudaError_t status) {
    if (status != cudaSuccess) cudaGetLastError(); /* clears the error, which is handled here */
    return status != cudaSuccess;
}

static bool can_record(const struct backend *be) {
    return cuda_state(be)->uses_graphs && be->op == be->run && !be->failure.text[0];
}

/* Records the operations of work. Returns NULL if some of them cannot be recorded. */
static cudaGraph_t record(struct backend *be, void (*work)(void *), void *argument) {
    cudaStream_t stream = cuda_state(be)->compute;
    cudaGraph_t recorded = NULL;
    if (failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))) return NULL;
    work(argument);
    bool lost = failed(cudaStreamEndCapture(stream, &recorded)) || be->failure.text[0];
    be->failure.text[0] = 0; /* the direct run reports it */
    if (lost && recorded) cudaGraphDestroy(recorded);
    return lost ? NULL : recorded;
}

/* Updates *graph to the recorded operations. */
static bool update_graph(struct cuda_graph *graph, cudaGraph_t recorded) {
    cudaGraphExecUpdateResultInfo result;
    if (graph->exec && !failed(cudaGraphExecUpdate(graph->exec, recorded, &result))) return true;
    if (graph->exec) cudaGraphExecDestroy(graph->exec);
    graph->exec = NULL;
    return !failed(cudaGraphInstantiateWithFlags(&graph->exec, recorded, 0));
}

void cuda_graph_run(struct backend *be, int which, void (*work)(void *), void *argument) {
    struct cuda_state *cuda = cuda_state(be);
    struct cuda_graph *graph = &cuda->graphs[which];
    assert(which >= 0 && which < BACKEND_GRAPHS);
    if (!can_record(be) || !graph->begun) {
        graph->begun = graph->begun || can_record(be);
        work(argument);
        return;
    }
    cudaGraph_t recorded = record(be, work, argument);
    bool done = recorded && update_graph(graph, recorded) &&
                !failed(cudaGraphLaunch(graph->exec, cuda->compute));
    if (recorded) cudaGraphDestroy(recorded);
    if (done) return;
    cuda->uses_graphs = false;
    fprintf(stderr, "CUDA graphs do not work here: operations are launched one by one\n");
    work(argument);
}

void cuda_graphs_close(struct cuda_state *cuda) {
    for (int i = 0; i < BACKEND_GRAPHS; i++)
        if (cuda->graphs[i].exec) cudaGraphExecDestroy(cuda->graphs[i].exec);
}
