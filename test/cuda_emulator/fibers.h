/* State of the running block, private to the emulator. cuda_emulator.cpp creates and switches
 * fibers and runs launches; warp.cpp implements barriers and warp collectives. */
#ifndef TEST_CUDA_EMULATOR_FIBERS_H
#define TEST_CUDA_EMULATOR_FIBERS_H

#include <cuda.h>
#include <functional>
#include <vector>

#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/machine.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)   ((void)(p), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#endif
#ifdef EMU_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" {
void __tsan_read_range(void *p, unsigned long bytes);
void __tsan_write_range(void *p, unsigned long bytes);
void __tsan_java_init(unsigned long heap, unsigned long bytes);
void __tsan_java_alloc(unsigned long p, unsigned long bytes);
void __tsan_java_free(unsigned long p, unsigned long bytes);
}
#endif
#ifndef __x86_64__
#define EMU_UCONTEXT
#include <ucontext.h>
#endif

namespace emu {

enum { LANES = 32, MAX_THREADS = 1024, BARRIERS = 16 };

enum fiber_state { READY, AT_BARRIER, AT_COLLECTIVE, DONE };

struct warp_state;

/* Every switch touches the first two cache lines. */
struct alignas(64) fiber {
    uint3 index; /* threadIdx */
    int id, lane;
    warp_state *warp;
    fiber_state state;

    /* Reason and source position of the current wait. */
    const char *waits;
    site at;
    unsigned mask;
    void *payload;
    collective_function *function;

    std::vector<deferred> *copies; /* oldest first */
    int open_group;

    char *stack;
    size_t stack_bytes;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    void *fake_stack, *tsan; /* handles of the sanitizers */

    /* Blocks alternate between these, so that ThreadSanitizer sees no order between consecutive
     * blocks. */
    char *stacks[2];
    void *contexts[2];
    std::vector<deferred> own_copies[2];
};

struct lane_group {
    unsigned mask, generation;
};

struct warp_state {
    unsigned present, exited, waiting; /* masks of lanes */
    lane_group groups[16];             /* one for each mask seen */
    bool uniform;                      /* true if all waiting lanes are in the same call */
};

struct barrier_state {
    int arrived, expected;
    const char *name;
    site at;
    fiber *waiting[MAX_THREADS];
    int waiting_count;
    unsigned generation;
    int sum, result[2];
};

extern fiber fibers[MAX_THREADS], *self; /* self: the running fiber */
extern barrier_state barriers[BARRIERS];
extern int thread_count, live_count;
extern unsigned schedule_seed;
extern struct cuda_emulator_stats stats;

void make_ready(fiber *f);
void wait_turn(); /* runs another ready fiber, or the host if there is none */

/* Annotations for ThreadSanitizer: what precedes a release on p happens before what follows an
 * acquire. */
void acquire(void *p);
void release(void *p);

/* Returns the address that a block's threads release and acquire at a barrier. Each barrier has
 * one for each parity of its generation, so that a thread that runs ahead does not hide a race. */
void *sync_of_barrier(int id, unsigned generation);
void *sync_of_lanes(int warp, int group, unsigned generation);

/* Fills with 0xff, unseen by either sanitizer. */
void poison(void *p, size_t bytes);

void meetings_begin();      /* before a block */
void meetings_check_exit(); /* self is about to end */

/* shared.cpp: a block of that much dynamic memory begins. `memory` is not aligned, and has
 * 2 MOST_ALIGNMENT bytes more. */
void shared_block_begins(char *memory, size_t bytes);

/* Offsets of the first byte and of the end, as shared_offset counts them, and the address of an
 * offset. */
unsigned shared_begin(), shared_end();
char *at_shared(unsigned offset);

/* Last error of the runtime. */
extern cudaError_t last_error;

/* memory.cpp: makes device memory accessible to instrumented code, or inaccessible. */
void device_open(bool on);
void device_open_range(const void *p, size_t bytes, bool on);
bool pinned_range(const void *p, size_t bytes);

/* True if both are in one allocation of pinned memory. */
bool pinned_together(const void *a, const void *b);

/* Completes the copies to pinned memory that a kernel with these arguments may read: a host that
 * has not waited for them reads NaN. */
void deliver_to_kernel(const void *arguments, size_t bytes);

/* streams.cpp. ThreadSanitizer sees each stream as a thread of its own. It is ordered after what
 * the host did before queueing, and after the streams that it waited for. */
void stream_enter(cudaStream_t stream); /* the following code runs as the stream */
void stream_leave(bool host_waits = false);
void streams_finish();                 /* does all queued work and delivers it to the host */
void stream_turn(cudaStream_t stream); /* does the work queued before */
void stream_inputs(cudaStream_t stream, const void *from, size_t bytes); /* see inputs_begin */
void streams_turn();                                                     /* on every stream */

/* True if the stream waits for another process. A kernel is queued then: kernel() runs it, when the
 * stream reaches it. queue_launch waits while the queue is full. */
bool stream_is_held(cudaStream_t stream);
void queue_launch(cudaStream_t stream, const std::function<void()> &kernel);

/* cuStreamWriteValue32. */
CUresult write_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags);

} // namespace emu

#endif
