/* Inside the emulator: the running block. cuda_emulator.cpp makes and switches fibers and runs
 * launches; warp.cpp is what fibers do together. */
#ifndef TEST_CUDA_EMULATOR_FIBERS_H
#define TEST_CUDA_EMULATOR_FIBERS_H

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
#endif
#ifndef __x86_64__
#define EMU_UCONTEXT
#include <ucontext.h>
#endif

namespace emu {

enum { LANES = 32, MAX_THREADS = 1024, BARRIERS = 16 };

enum fiber_state { READY, AT_BARRIER, AT_COLLECTIVE, DONE };

struct warp_state;

struct fiber {
    uint3 index; /* threadIdx */
    int id, lane;
    warp_state *warp;
    fiber_state state;

    /* What it waits for, and where. */
    const char *waits;
    site at;
    unsigned mask;
    void *payload;
    collective_function *function;

    std::vector<deferred> copies; /* oldest first */
    int open_group;

    char *stack;
    size_t stack_bytes;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#else
    void *stack_pointer;
#endif
    void *fake_stack, *tsan; /* the sanitizers' side of it */
};

/* What ThreadSanitizer synchronises on goes by the parity of the generation, so that a thread that
 * runs ahead does not hide a race. */
struct lane_group {
    unsigned mask, generation;
    uint64_t sync[2];
};

struct warp_state {
    unsigned present, exited, waiting; /* lanes */
    lane_group groups[16];             /* one for each mask met */
    bool uniform;                      /* all that wait do so in the same call */
};

struct barrier_state {
    int arrived, expected;
    const char *name;
    site at;
    fiber *waiting[MAX_THREADS];
    int waiting_count;
    unsigned generation;
    int sum, result[2];
    uint64_t sync[2];
};

extern fiber fibers[MAX_THREADS], *self; /* self: the running one */
extern barrier_state barriers[BARRIERS];
extern int thread_count, live_count;
extern unsigned schedule_seed;
extern struct cuda_emulator_stats stats;

void make_ready(fiber *f);
void wait_turn(); /* runs another ready fiber, or the host if there is none */

/* To ThreadSanitizer: what was released on p happened before what follows an acquire. */
void acquire(void *p);
void release(void *p);

void meetings_begin();      /* before a block */
void meetings_check_exit(); /* self is about to end */

/* The runtime's last error. */
extern cudaError_t last_error;

/* memory.cpp: device memory becomes accessible to instrumented code, or not. */
void device_open(bool on);
void device_open_range(const void *p, size_t bytes, bool on);
bool pinned_range(const void *p, size_t bytes);

/* streams.cpp */
void streams_finish();                 /* all that is queued, delivered to the host */
void stream_turn(cudaStream_t stream); /* does what is queued before */
void stream_inputs(cudaStream_t stream, const void *from, size_t bytes); /* see inputs_begin */
void streams_turn();                                                     /* on every stream */

} // namespace emu

#endif
