/* CUDA graphs: work that a stream records instead of doing it. */
#ifndef TEST_CUDA_EMULATOR_GRAPHS_H
#define TEST_CUDA_EMULATOR_GRAPHS_H

#include <cuda_runtime.h>
#include <functional>

namespace emu {

/* True while a graph is recorded on this stream. */
bool recording(cudaStream_t stream);

/* Appends a node to the graph being recorded. `what` names its kind and `identity` what it runs;
 * a graph can be updated to another if all their nodes agree in both. `run` executes the node on
 * the stream that the graph is launched on. */
void record(const char *what, const void *identity, std::function<void(cudaStream_t)> run);

/* For calls that are forbidden while any graph is recorded, or on the recording stream:
 * invalidates the graph. Returns true if it did. */
bool spoils_recording(const char *call);
bool spoils_recording_on(cudaStream_t stream, const char *call);

} // namespace emu

#endif
