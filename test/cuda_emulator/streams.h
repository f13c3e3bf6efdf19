/* Streams as events see them, private to the emulator: streams.cpp has the tasks of each,
 * events.cpp the events. */
#ifndef TEST_CUDA_EMULATOR_STREAMS_H
#define TEST_CUDA_EMULATOR_STREAMS_H

#include "test/cuda_emulator/fibers.h"

namespace emu {

struct stream;

struct event {
    stream *on; /* NULL: never recorded */
    uint64_t number;
    bool timed;
    double time; /* in milliseconds */
    int queries; /* since it was recorded */
    int mark;    /* its number in the graph of that number, if it was recorded in one */
    uint64_t graph;
};

stream *stream_of(cudaStream_t handle);
bool exists(const stream *s);

/* Returns a number larger than that of any task queued or event recorded before. */
uint64_t next_number();

/* Returns the time in milliseconds. */
double now();

/* True if a task up to number `until` is not done yet. */
bool is_pending(const stream *s, uint64_t until);

/* Run all tasks up to number `until` while the host waits; or the next one. */
void block_for(stream *s, uint64_t until);
void advance(stream *s, uint64_t until);

} // namespace emu

#endif
