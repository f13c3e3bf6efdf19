/* Events: points of a stream that the host or another stream waits for. */
#include "test/cuda_emulator/streams.h"

#include "test/cuda_emulator/graphs.h"

using namespace emu;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *mark, unsigned flags) {
    if (emu::must_fail("cudaEventCreateWithFlags"))
        return emu::runtime_error(cudaErrorUnknown, "cudaEventCreateWithFlags was told to fail");
    event *e = new event();
    e->timed = !(flags & cudaEventDisableTiming);
    *mark = (cudaEvent_t)e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *mark) {
    return cudaEventCreateWithFlags(mark, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t mark) {
    delete (event *)mark;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t mark, cudaStream_t handle) {
    if (emu::must_fail("cudaEventRecord"))
        return emu::runtime_error(cudaErrorUnknown, "cudaEventRecord was told to fail");
    event *e = (event *)mark;
    if (!e) return runtime_error(cudaErrorInvalidResourceHandle, "cudaEventRecord");
    if (recording(handle)) {
        record_event(handle, e);
        return cudaSuccess;
    }
    e->graph = 0;
    e->on = stream_of(handle);
    e->number = next_number();
    e->time = now();
    e->queries = 0;
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t mark) {
    if (emu::must_fail("cudaEventSynchronize"))
        return emu::runtime_error(cudaErrorLaunchFailure, "cudaEventSynchronize was told to fail");
    const event *e = (const event *)mark;
    if (!e) return runtime_error(cudaErrorInvalidResourceHandle, "cudaEventSynchronize");
    if (e->graph) return runtime_error(cudaErrorCapturedEvent, "cudaEventSynchronize");
    if (e->on && exists(e->on)) block_for(e->on, e->number);
    return last_error;
}

/* A stream lags behind the first queries, then each query does one task: a program that polls comes
 * to its end. */
cudaError_t cudaEventQuery(cudaEvent_t mark) {
    enum { LAG = 8 };
    event *e = (event *)mark;
    if (!e || e->graph || !e->on || !exists(e->on) || !is_pending(e->on, e->number))
        return cudaEventSynchronize(mark);
    if (++e->queries > LAG) advance(e->on, e->number);
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to) {
    if (emu::must_fail("cudaEventElapsedTime"))
        return emu::runtime_error(cudaErrorUnknown, "cudaEventElapsedTime was told to fail");
    const event *a = (const event *)from, *b = (const event *)to;
    if (!a || !b || !a->on || !b->on || !a->timed || !b->timed)
        return runtime_error(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime");
    *milliseconds = (float)(b->time - a->time);
    return cudaSuccess;
}

} // extern "C"
