/* Fibers, their scheduling, and launches. Compile without -fsanitize=thread, because this file
 * annotates fibers for ThreadSanitizer itself; AddressSanitizer and UBSan may be on. */
#include "test/cuda_emulator/cuda_emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/graphs.h"
#include "test/cuda_emulator/hopper.h"
#include "test/cuda_emulator/limits.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
extern "C" char __start_emu_shared[] __attribute__((weak));
extern "C" char __stop_emu_shared[] __attribute__((weak));

namespace emu {

enum { STACK_BYTES = 64 << 10, PAGE_BYTES = 4096 };

fiber fibers[MAX_THREADS], *self;
int thread_count, live_count;
unsigned schedule_seed;
struct cuda_emulator_stats stats;

static fiber host;                        /* the thread of the host, while fibers run */
static uint64_t block_begun, block_ended; /* synchronisation addresses of ThreadSanitizer */
static int turn;                          /* selects a fiber's stacks and contexts */
static fiber *ready[MAX_THREADS];
static unsigned ready_first, ready_count; /* a ring */
static uint64_t random_state;
static warp_state warps[MAX_THREADS / LANES];

static const launch *current;
static void (*kernel_body)(void *);
static void *kernel_argument;
static char failure[1024];
static bool failed;

void acquire(void *p) {
    (void)p;
#ifdef EMU_TSAN
    __tsan_acquire(p);
#endif
}

void release(void *p) {
    (void)p;
#ifdef EMU_TSAN
    __tsan_release(p);
#endif
}

void touched(const void *p, size_t bytes, bool written) {
    (void)p, (void)bytes, (void)written;
#ifdef EMU_TSAN
    if (bytes == 0) return;
    if (written) __tsan_write_range((void *)p, bytes);
    else __tsan_read_range((void *)p, bytes);
#endif
}

/* ---- memory of one block, new in each block for ThreadSanitizer. Dynamic memory is allocated
 * elsewhere, where AddressSanitizer guards its ends. */

#ifdef EMU_TSAN
static struct {
    uint64_t barriers[BARRIERS][2], lanes[MAX_THREADS / LANES][16][2];
    char dynamic[SHARED_MOST + 2 * MOST_ALIGNMENT];
} own __attribute__((section("emu_block")));

static void renew(void *p, size_t bytes) {
    static bool begun;
    uintptr_t first = (uintptr_t)p / 8 * 8, end = ((uintptr_t)p + bytes + 7) / 8 * 8;
    if (!begun) { /* covers both sections: ThreadSanitizer has a single range */
        uintptr_t a = (uintptr_t)__start_emu_shared / 8 * 8, b = (uintptr_t)&own / 8 * 8;
        uintptr_t a_end = (uintptr_t)__stop_emu_shared + 8, b_end = b + sizeof own;
        uintptr_t low = a && a < b ? a : b, high = a_end > b_end ? a_end : b_end;
        __tsan_java_init(low, (high - low + 7) / 8 * 8);
    }
    begun = true;
    __tsan_java_free(first, end - first);
    __tsan_java_alloc(first, end - first);
}

void *sync_of_barrier(int id, unsigned generation) {
    return &own.barriers[id][generation & 1];
}

void *sync_of_lanes(int warp, int group, unsigned generation) {
    return &own.lanes[warp][group][generation & 1];
}
#else
void *sync_of_barrier(int, unsigned) {
    return NULL;
}

void *sync_of_lanes(int, int, unsigned) {
    return NULL;
}
#endif

/* ---- scheduling */

static unsigned random_below(unsigned limit) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) * limit >> 31);
}

void make_ready(fiber *f) {
    f->state = READY;
    ready[(ready_first + ready_count++) % MAX_THREADS] = f;
}

/* Loads what the next switches will touch: most of their time goes into waiting for it. */
static void prefetch(const fiber *next, const fiber *after) {
#ifndef EMU_UCONTEXT
    if (next) __builtin_prefetch(next->stack_pointer);
#endif
    (void)next;
    __builtin_prefetch(after);
    __builtin_prefetch((const char *)after + 64);
}

static fiber *next_ready() {
    if (ready_count == 0) return &host;
    if (schedule_seed == 1) return ready[(ready_first + --ready_count) % MAX_THREADS];
    fiber **first = &ready[ready_first];
    if (schedule_seed > 1) {
        fiber **chosen = &ready[(ready_first + random_below(ready_count)) % MAX_THREADS];
        fiber *f = *chosen;
        *chosen = *first;
        *first = f;
    }
    ready_first = (ready_first + 1) % MAX_THREADS;
    ready_count--;
    prefetch(ready[ready_first], ready[(ready_first + 1) % MAX_THREADS]);
    return *first;
}

/* ---- switching */

#ifndef EMU_UCONTEXT
extern "C" void emu_switch(void **save, void *load);
asm(".text\n.globl emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "mov %rsp, (%rdi)\n mov %rsi, %rsp\n"
    "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
    ".size emu_switch, . - emu_switch\n");
#endif

/* Must be the first call on the new stack. */
static void switched() {
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(self->fake_stack, &bottom, &bytes);
    if (!host.stack) { /* the very first switch leaves the host's stack */
        host.stack = (char *)bottom;
        host.stack_bytes = bytes;
    }
#endif
}

static void switch_to(fiber *to, bool dying = false) {
    fiber *from = self;
    if (to == from) return;
    stats.switches++;
    self = to;
    threadIdx = to->index;
    (void)dying;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(dying ? NULL : &from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EMU_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    emu_switch(&from->stack_pointer, to->stack_pointer);
#endif
    switched();
}

void wait_turn() {
    switch_to(next_ready());
}

void fail(site at, const char *format, ...) {
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    snprintf(failure, sizeof failure, "%s:%d: %s [kernel %s, block (%u,%u,%u), thread (%u,%u,%u)]",
             at.file, at.line, message, current->name, blockIdx.x, blockIdx.y, blockIdx.z,
             threadIdx.x, threadIdx.y, threadIdx.z);
    failed = true;
    switch_to(&host, true);
    abort();
}

/* ---- start and end of a thread */

static void thread_main() {
    switched();
    acquire(&block_begun);
    kernel_body(kernel_argument);
    if (!self->copies->empty())
        fail(self->at, "a thread exits with an asynchronous copy never waited for");
    meetings_check_exit();
    self->state = DONE;
    live_count--;
    release(&block_ended);
    switch_to(next_ready(), true);
    abort();
}

static void make_stack(fiber *f) {
    f->stack = f->stacks[turn];
    f->tsan = f->contexts[turn];
    if (!f->stack) { /* one guard page below each */
        void *memory = mmap(NULL, STACK_BYTES + PAGE_BYTES, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, PAGE_BYTES, PROT_NONE) != 0) {
            perror("cuda_emulator: stacks");
            abort();
        }
        f->stack = f->stacks[turn] = (char *)memory + PAGE_BYTES;
        f->stack_bytes = STACK_BYTES;
#ifdef EMU_TSAN
        f->tsan = f->contexts[turn] = __tsan_create_fiber(0);
#endif
    }
#ifdef EMU_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, thread_main, 0);
#else
    /* Stack tops get different offsets in their pages, else all stacks compete for the same few
     * cache sets. The stack pointer modulo 16 is 8 at entry, as after a call. The frames in
     * which the last fiber ended may have left red zones. */
    void **top = (void **)(f->stack + STACK_BYTES - f->id % 16 * 256) - 2;
    ASAN_UNPOISON_MEMORY_REGION((char *)top - 1024, 1024 + 16);
    top[0] = (void *)&thread_main;
    top[1] = NULL;
    for (int i = 1; i <= 6; i++) top[-i] = NULL;
    f->stack_pointer = top - 6;
#endif
}

static void start_fiber(int id) {
    fiber *f = &fibers[id];
    f->id = id;
    f->lane = id % LANES;
    f->warp = &warps[id / LANES];
    f->index = {id % blockDim.x, id / blockDim.x % blockDim.y, id / (blockDim.x * blockDim.y)};
    f->waits = "start";
    f->at = {"?", 0};
    f->copies = &f->own_copies[turn];
    f->copies->clear();
    f->open_group = 0;
    make_stack(f);
    make_ready(f);
}

/* After a failure: drops fibers wherever they stopped. */
static void abandon() {
    for (int i = 0; i < thread_count; i++) {
        ASAN_UNPOISON_MEMORY_REGION(fibers[i].stack, STACK_BYTES);
#ifdef EMU_TSAN
        __tsan_switch_to_fiber(fibers[i].tsan, 0); /* orders its work before what follows */
        __tsan_switch_to_fiber(host.tsan, 0);
        __tsan_destroy_fiber(fibers[i].tsan);
        fibers[i].tsan = fibers[i].contexts[turn] = __tsan_create_fiber(0);
#endif
    }
}

static void describe_deadlock() {
    size_t length = (size_t)snprintf(failure, sizeof failure, "deadlock in %s:", current->name);
    for (int i = 0; i < thread_count; i++) {
        const fiber *f = &fibers[i];
        int before = 0, together = 0;
        for (int j = 0; j < thread_count; j++) {
            const fiber *g = &fibers[j];
            if (g->state == DONE || g->waits != f->waits || g->at.line != f->at.line ||
                g->mask != f->mask)
                continue;
            before += j < i;
            together++;
        }
        if (f->state == DONE || before > 0 || length >= sizeof failure) continue;
        length += (size_t)snprintf(failure + length, sizeof failure - length,
                                   " %d thread(s) from %d on wait in %s (mask %08x) at %s:%d;",
                                   together, i, f->waits, f->mask, f->at.file, f->at.line);
    }
    if (live_count < thread_count && length < sizeof failure)
        snprintf(failure + length, sizeof failure - length, " %d exited;",
                 thread_count - live_count);
    failed = true;
}

/* ---- a block */

/* Not memset: these bytes may hold AddressSanitizer's red zones, which only uninstrumented code
 * may overwrite. */
__attribute__((no_sanitize("address"))) void poison(void *memory, size_t bytes) {
#ifdef __x86_64__
    asm volatile("rep stosb" : "+D"(memory), "+c"(bytes) : "a"(0xff) : "memory");
#else
    volatile char *p = (volatile char *)memory;
    for (size_t i = 0; i < bytes; i++) p[i] = (char)0xff;
#endif
}

static void run_block() {
    ready_count = ready_first = 0;
    live_count = thread_count;
    meetings_begin();
    for (int w = 0; w * LANES < thread_count; w++) {
        int lanes = thread_count - w * LANES;
        warps[w] = {lanes >= LANES ? ~0u : (1u << lanes) - 1, 0, 0, {}, true};
    }
#ifdef EMU_TSAN
    turn ^= 1;
#endif
    for (int i = 0; i < thread_count; i++) start_fiber(i);

    /* Poisoned from its last byte on, so that AddressSanitizer detects overruns. */
    size_t whole = current->shared_bytes + 2 * MOST_ALIGNMENT;
#ifdef EMU_TSAN
    char *memory = own.dynamic;
    renew(own.barriers, sizeof own.barriers + sizeof own.lanes);
    renew(memory, whole);
    if (__start_emu_shared)
        renew(__start_emu_shared, (size_t)(__stop_emu_shared - __start_emu_shared));
#else
    char *memory = (char *)malloc(whole);
#endif
    shared_block_begins(memory, current->shared_bytes);
    ASAN_POISON_MEMORY_REGION(memory, whole);
    if (__start_emu_shared)
        poison(__start_emu_shared, (size_t)(__stop_emu_shared - __start_emu_shared));

    hopper_block_begins();
    wait_turn(); /* returns when no fiber is ready */
    if (!failed && live_count > 0) describe_deadlock();
    const char *left = failed ? NULL : hopper_block_ends();
    if (left) snprintf(failure, sizeof failure, "%s: %s", current->name, left);
    failed = failed || left;
    if (failed) abandon();
    ASAN_UNPOISON_MEMORY_REGION(memory, whole);
#ifndef EMU_TSAN
    free(memory);
#endif
    stats.blocks++;
    stats.threads += (uint64_t)thread_count;
}

/* ---- a launch */

/* nvcc rejects kernels with more static shared memory than SHARED_DEFAULT; dynamic memory gets
 * the rest. */
static void check_static_shared() {
    size_t bytes = static_shared(current->kernel), limit = shared_limit(current->kernel);
    if (bytes <= SHARED_DEFAULT && current->shared_bytes <= limit) return;
    snprintf(failure, sizeof failure,
             "%s has %zu bytes of static shared memory (of %d), and %zu dynamic ones (of %zu)",
             current->name, bytes, (int)SHARED_DEFAULT, current->shared_bytes, limit);
    failed = true;
}

/* Blocks run in any order, too. */
static void run_blocks(uint64_t count) {
    std::vector<uint32_t> order;
    if (schedule_seed > 1) {
        order.resize(count);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t j = random_below(i + 1);
            order[i] = order[j];
            order[j] = i;
        }
    }
    release(&block_begun);
    for (uint64_t i = 0; i < count && !failed; i++) {
        uint64_t b = schedule_seed > 1 ? order[i] : schedule_seed == 1 ? count - 1 - i : i;
        uint64_t row = b / gridDim.x;
        blockIdx = {(unsigned)(b % gridDim.x), (unsigned)(row % gridDim.y),
                    (unsigned)(row / gridDim.y)};
        run_block();
        if (i == 0 && !failed) check_static_shared();
    }
    acquire(&block_ended);
}

/* A value beyond the device's limits is an invalid configuration; one beyond this kernel's
 * limits is an invalid value. */
static cudaError_t check_launch(const launch &what) {
    const dim3 &grid = what.grid, &block = what.block;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    size_t limit = shared_limit(what.kernel);
    int bounds = launch_bounds(what.kernel);
    const char *reason = NULL;
    cudaError_t error = cudaErrorInvalidConfiguration;
    if (threads == 0 || threads > MAX_THREADS || block.z > 64) reason = "the size of a block";
    else if (!grid.x || !grid.y || !grid.z) reason = "an empty grid";
    else if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) reason = "the grid's size";
    else if (device_of_stream(what.stream) != current_device())
        reason = "a stream of another device";
    else error = cudaErrorInvalidValue;
    if (!reason && must_fail("launch")) reason = "it was told to fail";
    if (!reason && threads > (uint64_t)bounds) reason = "more threads than its launch bounds";
    if (!reason && what.shared_bytes > limit) reason = "more shared memory than allowed";
    if (!reason && !take_lazily(what.kernel)) {
        snprintf(failure, sizeof failure, "no device memory is left to load %s", what.name);
        return cudaErrorMemoryAllocation;
    }
    if (!reason) return cudaSuccess;
    snprintf(failure, sizeof failure,
             "launch of %s is not possible: %s (grid %u,%u,%u, block %u,%u,%u, threads %u of %d, "
             "shared %zu of %zu)",
             what.name, reason, grid.x, grid.y, grid.z, block.x, block.y, block.z,
             (unsigned)threads, bounds, what.shared_bytes, limit);
    return error;
}

/* Runs a launch that check_launch has accepted. queued: its stream has reached it. */
static void run_now(const launch &what, void (*body)(void *), void *argument, size_t bytes,
                    bool queued = false) {
    if (queued) device_open(true);
    else work_begin(what.stream);
    deliver_to_kernel(argument, bytes);
    current = &what;
    kernel_body = body;
    kernel_argument = argument;
    thread_count = (int)(what.block.x * what.block.y * what.block.z);
    gridDim = what.grid;
    blockDim = what.block;
    self = &host;
    failed = false;
#ifdef EMU_TSAN
    host.tsan = __tsan_get_current_fiber();
#endif
    run_blocks((uint64_t)gridDim.x * gridDim.y * gridDim.z);
    self = NULL;
    stream_leave(failed); /* the host reads the failure */
    work_end();
    stats.launches++;
    int held = blocks_held(what.kernel, thread_count, what.shared_bytes);
    if (stats.blocks_held == 0 || held < stats.blocks_held) stats.blocks_held = held;
    if (failed) runtime_error(cudaErrorLaunchFailure, failure);
}

void run(const launch &what, void (*body)(void *), void *argument,
         std::shared_ptr<void> (*keep)(const void *), size_t bytes) {
    failure[0] = 0;
    cudaError_t refused = check_launch(what);
    if (refused != cudaSuccess) {
        runtime_error(refused, failure);
        return;
    }
    bool records = recording(what.stream);
    stats.host_launches += !records;
    if (!records && !stream_is_held(what.stream)) {
        run_now(what, body, argument, bytes);
        return;
    }
    std::shared_ptr<void> kept = keep(argument);
    if (!records) {
        queue_launch(what.stream, [=]() { run_now(what, body, kept.get(), bytes, true); });
        return;
    }
    record(
        what.stream,
        [=](cudaStream_t stream) {
            launch later = what;
            later.stream = stream;
            run_now(later, body, kept.get(), bytes);
        },
        argument, bytes);
}

int lane() {
    return self->lane;
}

void count_ldmatrix(unsigned conflicts) {
    stats.ldmatrix++;
    stats.ldmatrix_conflicts += conflicts;
}

} // namespace emu

void cuda_emulator_schedule(unsigned seed) {
    emu::schedule_seed = seed;
    emu::random_state = seed * 0x9e3779b97f4a7c15u + 1;
}

struct cuda_emulator_stats cuda_emulator_stats(void) {
    return emu::stats;
}

void cuda_emulator_stats_reset(void) {
    emu::stats = {};
}

const char *cuda_emulator_failure(void) {
    return emu::failure;
}
