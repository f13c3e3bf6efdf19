/* Operations of a step as CUDA graphs: recorded once, and started by one call in each step.
 *
 * A launch costs the host some microseconds and the GPU one or two between kernels; a step of
 * twelve layers has three hundred. A graph repeats the recorded arguments: what changes from step
 * to step (learning rate, seed, weight of the loss) is in device memory, struct step_inputs. A
 * graph is dropped if its operations belong to another owner, or once memory has been released,
 * whose addresses it may hold.
 *
 * The first call runs the operations directly, so that kernels are loaded and the library has
 * allocated its memory; the second records them. If recording or a graph fails, nothing has run
 * yet: the operations then run directly, now and in all later calls. */
#include <assert.h>
#include <stdio.h>

#include "kernels/cuda/cuda.h"

static bool failed(cudaError_t status) {
    if (status != cudaSuccess) cudaGetLastError(); /* clears the error, which is handled here */
    return status != cudaSuccess;
}

/* An observer has a table of operations of its own, and must be called for each. */
static bool can_launch(const struct backend *be) {
    return cuda_state(be)->uses_graphs && be->op == be->run && !be->failure.text[0];
}

/* Returns true if the operations of this owner have run with the addresses of now. If not, drops
 * the graph and makes it an empty one of theirs. */
static bool take_graph(const struct cuda_state *cuda, struct cuda_graph *graph, const void *owner) {
    if (graph->owner == owner && graph->releases == cuda->releases) return true;
    if (graph->exec) cudaGraphExecDestroy(graph->exec);
    *graph = {NULL, owner, cuda->releases};
    return false;
}

/* Records the operations of work. Returns false if some of them cannot be recorded. */
static bool record(struct backend *be, struct cuda_graph *graph, void (*work)(void *),
                   void *argument) {
    cudaStream_t stream = cuda_state(be)->compute;
    cudaGraph_t recorded = NULL;
    if (failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal))) return false;
    work(argument);
    bool lost = failed(cudaStreamEndCapture(stream, &recorded)) || be->failure.text[0];
    be->failure.text[0] = 0; /* the direct run reports it */
    lost = lost || failed(cudaGraphInstantiateWithFlags(&graph->exec, recorded, 0));
    if (recorded) cudaGraphDestroy(recorded);
    return !lost;
}

void cuda_graph_run(struct backend *be, int which, const void *owner, void (*work)(void *),
                    void *argument) {
    struct cuda_state *cuda = cuda_state(be);
    struct cuda_graph *graph = &cuda->graphs[which];
    assert(which >= 0 && which < BACKEND_GRAPHS);
    if (!can_launch(be) || !take_graph(cuda, graph, owner)) {
        work(argument);
        return;
    }
    if ((graph->exec || record(be, graph, work, argument)) &&
        !failed(cudaGraphLaunch(graph->exec, cuda->compute)))
        return;
    cuda->uses_graphs = false;
    note(stderr, "note", "CUDA graphs do not work here: operations are launched one by one");
    work(argument);
}

void cuda_graphs_close(struct cuda_state *cuda) {
    for (int i = 0; i < BACKEND_GRAPHS; i++)
        if (cuda->graphs[i].exec) cudaGraphExecDestroy(cuda->graphs[i].exec);
}
