/* Work that is recorded on a stream instead of being done: CUDA graphs. */
#ifndef TEST_CUDA_EMULATOR_GRAPHS_H
#define TEST_CUDA_EMULATOR_GRAPHS_H

#include <cuda_runtime.h>
#include <functional>

namespace emu {

/* True while a graph is recorded on this stream. */
bool recording(cudaStream_t stream);

/* The next node of the graph that is recorded; `what` names its kind, `identity` what it runs. A
 * graph can take the place of another if both agree in all of these. run: does it, on the stream
 * that the graph is launched on. */
void record(const char *what, const void *identity, std::function<void(cudaStream_t)> run);

/* For a call that must not be made while any graph is recorded, or on the stream of one: the graph
 * is spoiled then. Returns whether it is so. */
bool spoils_recording(const char *call);
bool spoils_recording_on(cudaStream_t stream, const char *call);

} // namespace emu

#endif
