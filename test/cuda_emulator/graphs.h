/* CUDA graphs: work that a stream records instead of doing it. */
#ifndef TEST_CUDA_EMULATOR_GRAPHS_H
#define TEST_CUDA_EMULATOR_GRAPHS_H

#include <cuda_runtime.h>
#include <functional>

namespace emu {

struct event;

/* True while a graph is recorded on this stream, or the stream has joined the recording. */
bool recording(cudaStream_t stream);

/* Appends a node of a stream to the graph being recorded. `run` executes the node on the stream
 * that it is given: the one of the launch, or one of the graph's own. `arguments` are searched for
 * pointers to device memory and pinned memory, which must not be freed before the last launch. */
void record(cudaStream_t stream, std::function<void(cudaStream_t)> run, const void *arguments,
            size_t bytes);

/* Record an event on a recording stream, and a wait for it, by which another stream joins the
 * recording. The wait fails, and invalidates the graph, if a recording stream waits for an event
 * from elsewhere, or another stream for one that was recorded in an earlier graph. */
void record_event(cudaStream_t stream, event *e);
cudaError_t record_wait(cudaStream_t stream, const event *e);

/* Called before memory is freed. */
void graphs_lose_memory(const void *p, size_t bytes);

/* For calls that are forbidden while any graph is recorded, or on the recording stream:
 * invalidates the graph. Returns true if it did. */
bool spoils_recording(const char *call);
bool spoils_recording_on(cudaStream_t stream, const char *call);

} // namespace emu

#endif
