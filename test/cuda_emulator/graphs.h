/* CUDA graphs: work that a stream records instead of doing it. */
#ifndef TEST_CUDA_EMULATOR_GRAPHS_H
#define TEST_CUDA_EMULATOR_GRAPHS_H

#include <cuda_runtime.h>
#include <functional>

namespace emu {

/* True while a graph is recorded on this stream. */
bool recording(cudaStream_t stream);

/* Appends a node to the graph being recorded. `run` executes the node on the stream that the graph
 * is launched on. `arguments` are searched for pointers to device memory and pinned memory, which
 * must not be freed before the last launch. */
void record(std::function<void(cudaStream_t)> run, const void *arguments, size_t bytes);

/* Called before memory is freed. */
void graphs_lose_memory(const void *p, size_t bytes);

/* For calls that are forbidden while any graph is recorded, or on the recording stream:
 * invalidates the graph. Returns true if it did. */
bool spoils_recording(const char *call);
bool spoils_recording_on(cudaStream_t stream, const char *call);

} // namespace emu

#endif
