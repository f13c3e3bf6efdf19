/* Streams, and copies that happen as late as CUDA allows, so that a missing wait shows.
 *
 * A stream is a list of tasks: copies, fills, work of libraries (queue_work), and waits for a
 * point of another stream. Queueing does nothing yet. The tasks of a stream are done in order
 *
 *   - when a kernel is launched on the stream (kernels run at once, after what they wait for),
 *   - when another stream reaches its wait for an event of this stream,
 *   - when the host synchronises with the stream, an event recorded on it, or the device.
 *
 * The target of a task is filled with 0xff when the task is queued: a reader that does not wait
 * finds NaN. A copy to the host reaches the host's memory only when the host synchronises.
 * ThreadSanitizer finds more: it sees each stream as a thread, ordered with others by events
 * alone. Unordered accesses by two streams are a race, whenever they happen here.
 *
 * A launch behind work that waits for another process is queued, up to LAUNCH_QUEUE of them: the
 * next one waits within the launch, as on a GPU.
 *
 * A copy from pageable host memory takes the bytes when it is queued; a copy to pageable memory
 * is done before the call returns. */
#include <algorithm>
#include <deque>
#include <vector>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/graphs.h"
#include "test/cuda_emulator/limits.h"
#include "test/cuda_emulator/streams.h"

namespace emu {

enum task_kind { COPY, FILL, WAIT, WORK };

struct stream;

struct task {
    task_kind kind;
    uint64_t number; /* number of tasks and records over all streams */
    bool done;
    bool prompt; /* done as soon as the task before, since others look at its result without waiting
                  */

    void *to;
    const void *from;
    size_t bytes;
    int value; /* FILL value */
    bool to_host;
    std::vector<char> staged; /* bytes from pageable memory, or not delivered to the host yet */

    stream *other; /* WAIT: runs the tasks of `other` up to number `until` */
    uint64_t until;

    void (*run)(void *argument);   /* WORK */
    bool (*ready)(void *argument); /* NULL: always */
    void *argument;
};

struct stream {
    bool blocking; /* waits for the legacy stream, and the legacy stream for it */
    int device, priority;
    std::deque<task> tasks;
    void *tsan;            /* its thread in ThreadSanitizer */
    uint64_t told, passed; /* sync addresses: acquired from the host, released for others */
};

static stream legacy;
static std::vector<stream *> streams = {&legacy};
static uint64_t numbers;
static const uint64_t ALL = UINT64_MAX;

uint64_t next_number() {
    return ++numbers;
}

static double passed; /* milliseconds */

void time_passes(double milliseconds) {
    passed += milliseconds;
}

double now() {
    timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return passed + 1e3 * (double)used.tv_sec + 1e-6 * (double)used.tv_nsec;
}

bool exists(const stream *s) {
    return std::find(streams.begin(), streams.end(), s) != streams.end();
}

stream *stream_of(cudaStream_t handle) {
    if (handle == NULL || handle == cudaStreamLegacy || handle == cudaStreamPerThread)
        return &legacy;
    return (stream *)handle;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes) {
    return (const char *)a < (const char *)b + b_bytes &&
           (const char *)b < (const char *)a + a_bytes;
}

/* ---- to ThreadSanitizer */

/* Continues as the stream's thread. Returns the thread that ran before. */
static void *become(stream *s) {
    (void)s;
#ifdef EMU_TSAN
    void *before = __tsan_get_current_fiber();
    if (!s->tsan) s->tsan = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(s->tsan, __tsan_switch_to_fiber_no_sync);
    return before;
#else
    return NULL;
#endif
}

static void become_again(stream *s, void *before) {
    (void)before;
    release(&s->passed);
#ifdef EMU_TSAN
    __tsan_switch_to_fiber(before, __tsan_switch_to_fiber_no_sync);
#endif
}

/* Orders what the host has done before what it queues. */
static void tell(stream *s) {
    release(&s->told);
    void *before = become(s);
    acquire(&s->told);
    become_again(s, before);
}

static stream *entered;
static void *entered_from;

void stream_enter(cudaStream_t handle) {
    if (entered) stream_leave(); /* called for inputs, then for work */
    entered = stream_of(handle);
    tell(entered);
    entered_from = become(entered);
}

void stream_leave(bool host_waits) {
    if (!entered) return; /* work without a stream */
    become_again(entered, entered_from);
    if (host_waits) acquire(&entered->passed);
    entered = NULL;
}

/* ---- running tasks */

static void open_task(const task &t, bool on) {
    if (device_range(t.to, t.bytes)) device_open_range(t.to, t.bytes, on);
    if (t.from && t.staged.empty() && device_range(t.from, t.bytes))
        device_open_range(t.from, t.bytes, on);
}

static void deliver(task *t) {
    if (t->staged.empty()) return;
    memcpy(t->to, t->staged.data(), t->bytes);
    std::vector<char>().swap(t->staged);
}

/* Delivers an earlier copy that the host has not waited for if its target is read by the next
 * copy. */
static void deliver_before_reading(const task &reader) {
    for (stream *s : streams)
        for (task &t : s->tasks)
            if (t.done && t.to_host && overlap(t.to, t.bytes, reader.from, reader.bytes))
                deliver(&t);
}

/* The same for a kernel that is given an address in the pinned memory of the target. */
void deliver_to_kernel(const void *arguments, size_t bytes) {
    for (size_t at = 0; at + sizeof(char *) <= bytes; at += sizeof(char *)) {
        const char *word;
        memcpy(&word, (const char *)arguments + at, sizeof word);
        if (!pinned_range(word, 1)) continue;
        for (stream *s : streams)
            for (task &t : s->tasks)
                if (t.done && t.to_host && pinned_together(word, t.to)) deliver(&t);
    }
}

static void perform(stream *s, uint64_t until);

static void perform_task(task *t) {
    t->done = true;
    if (t->kind == WAIT) {
        if (!exists(t->other)) return;
        perform(t->other, t->until);
        acquire(&t->other->passed);
        return;
    }
    open_task(*t, true);
    if (t->kind == WORK) {
        t->run(t->argument);
        touched(t->to, t->bytes, true);
    } else if (t->kind == FILL) {
        memset(t->to, t->value, t->bytes);
    } else if (t->to_host) {
        t->staged.assign((const char *)t->from, (const char *)t->from + t->bytes);
    } else if (!t->staged.empty()) {
        deliver(t);
    } else {
        deliver_before_reading(*t);
        memcpy(t->to, t->from, t->bytes);
    }
    open_task(*t, false);
}

/* Does the tasks up to number `until`. They stay in the list, because the host may wait for them
 * later. */
static void perform(stream *s, uint64_t until) {
    void *before = become(s);
    for (size_t i = 0; i < s->tasks.size(); i++) {
        task *t = &s->tasks[i];
        if (t->number > until && !t->prompt) break;
        if (!t->done) perform_task(t);
    }
    become_again(s, before);
}

/* Runs all tasks of `other`, and orders them before later tasks of `s`. */
static void follow(stream *s, stream *other) {
    perform(other, ALL);
    void *before = become(s);
    acquire(&other->passed);
    become_again(s, before);
}

/* Runs all tasks and delivers copies to the host, which waits. */
static void settle(stream *s, uint64_t until) {
    perform(s, until);
    acquire(&s->passed);
    while (!s->tasks.empty() && s->tasks.front().number <= until) {
        task t = std::move(s->tasks.front());
        s->tasks.pop_front();
        if (t.kind == WAIT && exists(t.other)) settle(t.other, t.until);
        if (t.to_host) deliver(&t);
    }
}

static bool blocked;

bool host_is_blocked() {
    return blocked;
}

/* The host waits within the runtime. */
void block_for(stream *s, uint64_t until) {
    blocked = true;
    settle(s, until);
    blocked = false;
}

bool is_pending(const stream *s, uint64_t until) {
    return std::any_of(s->tasks.begin(), s->tasks.end(),
                       [until](const task &t) { return !t.done && t.number < until; });
}

/* Runs the next task up to number `until`, in s or in the stream it waits for, if it is ready. */
void advance(stream *s, uint64_t until) {
    for (task &t : s->tasks) {
        if (t.done || t.number > until) continue;
        if (t.kind == WAIT && exists(t.other) && is_pending(t.other, t.until)) {
            advance(t.other, t.until);
        } else if (t.kind != WORK || !t.ready || t.ready(t.argument)) {
            perform(s, t.number);
        }
        return;
    }
}

/* The legacy stream and blocking streams wait for each other. */
static void order_with_legacy(stream *s) {
    if (s != &legacy && s->blocking) follow(s, &legacy);
    if (s != &legacy) return;
    for (stream *other : streams)
        if (other->blocking) follow(s, other);
}

void stream_turn(cudaStream_t handle) {
    order_with_legacy(stream_of(handle));
    perform(stream_of(handle), ALL);
}

void stream_inputs(cudaStream_t handle, const void *from, size_t bytes) {
    stream *s = stream_of(handle);
    order_with_legacy(s);
    for (size_t i = 0; i < s->tasks.size(); i++) {
        task *t = &s->tasks[i];
        if (t->done || (t->kind == WORK && !overlap(t->to, t->bytes, from, bytes))) continue;
        if (t->kind != WAIT) {
            perform(s, t->number);
            continue;
        }
        void *before = become(s);
        perform_task(t);
        become_again(s, before);
    }
}

void streams_turn() {
    for (stream *s : streams) {
        perform(s, ALL);
        acquire(&s->passed);
    }
}

void streams_finish() {
    for (stream *s : streams) settle(s, ALL);
}

/* ---- queueing */

static void append(stream *s, task &&next) {
    tell(s);
    while (!s->tasks.empty() && s->tasks.front().done && !s->tasks.front().to_host &&
           s->tasks.front().kind != WAIT)
        s->tasks.pop_front(); /* its result is useless to a host that does not wait later */
    next.number = next_number();
    s->tasks.push_back(std::move(next));
}

static bool pending_overlap(const task &next) {
    for (const stream *s : streams)
        for (const task &t : s->tasks)
            if (!t.done && t.kind != WAIT &&
                (overlap(next.to, next.bytes, t.to, t.bytes) ||
                 (t.from && t.staged.empty() && overlap(next.to, next.bytes, t.from, t.bytes))))
                return true;
    return false;
}

static int queued_launches; /* kernels that have not run yet: nobody knows what they read */

/* Queues a task and poisons its target at once, unless a queued kernel may need it. Pending tasks
 * that still need the target are done first. */
static void queue(stream *s, task &&next) {
    order_with_legacy(s);
    if (pending_overlap(next)) perform(s, ALL);
    bool on_device = device_range(next.to, next.bytes);
    if (on_device) device_open_range(next.to, next.bytes, true);
    if (!queued_launches) poison(next.to, next.bytes);
    if (on_device) device_open_range(next.to, next.bytes, false);
    append(s, std::move(next));
}

void queue_work(cudaStream_t handle, void (*run)(void *argument), bool (*ready)(void *argument),
                void *argument, void *to, size_t bytes) {
    task work = {};
    work.kind = WORK;
    work.run = run;
    work.ready = ready;
    work.argument = argument;
    work.to = to;
    work.bytes = bytes;
    append(stream_of(handle), std::move(work));
}

CUresult write_value(CUstream handle, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    struct write {
        uint32_t *at, value;
    };
    if (flags || at % sizeof value || !pinned_range((void *)at, sizeof value) || recording(handle))
        return CUDA_ERROR_INVALID_VALUE;
    queue_work(
        handle,
        [](void *argument) {
            write *w = (write *)argument;
            __atomic_store_n(w->at, w->value, __ATOMIC_RELEASE);
            delete w;
        },
        NULL, new write{(uint32_t *)at, value}, (void *)at, sizeof value);
    stream_of(handle)->tasks.back().prompt = true;
    return CUDA_SUCCESS;
}

/* ---- the queue of launches */

/* True if work of another process is still missing before the stream can do what is queued on it.
 */
static bool held(stream *s, uint64_t until) {
    for (task &t : s->tasks) {
        if (t.done || t.number > until) continue;
        if (t.kind == WORK && t.ready && !t.ready(t.argument)) return true;
        if (t.kind == WAIT && exists(t.other) && held(t.other, t.until)) return true;
    }
    return false;
}

bool stream_is_held(cudaStream_t handle) {
    return held(stream_of(handle), ALL);
}

void queue_launch(cudaStream_t handle, const std::function<void()> &kernel) {
    stream *s = stream_of(handle);
    auto is_pending = [](const task &t) { return !t.done; };
    while (std::count_if(s->tasks.begin(), s->tasks.end(), is_pending) >= LAUNCH_QUEUE) {
        timespec moment = {0, 50000};
        nanosleep(&moment, NULL);
        advance(s, ALL);
    }
    queued_launches++;
    queue_work(
        handle,
        [](void *argument) {
            std::function<void()> *queued = (std::function<void()> *)argument;
            (*queued)();
            queued_launches--;
            delete queued;
        },
        NULL, new std::function<void()>(kernel), NULL, 0);
}

int priority_of_stream(cudaStream_t handle) {
    return stream_of(handle)->priority;
}

int device_of_stream(cudaStream_t handle) {
    return stream_of(handle) == &legacy ? current_device() : stream_of(handle)->device;
}

/* True if the pointers fit the direction. Resolves cudaMemcpyDefault. */
static bool resolve(void *to, const void *from, size_t bytes, cudaMemcpyKind *kind) {
    bool to_device = device_range(to, bytes), from_device = device_range(from, bytes);
    cudaMemcpyKind found = to_device
                               ? from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice
                           : from_device ? cudaMemcpyDeviceToHost
                                         : cudaMemcpyHostToHost;
    if (*kind == cudaMemcpyDefault) *kind = found;
    return *kind == found;
}

static const char WRONG_COPY[] =
    "cudaMemcpy: a pointer does not fit the direction, or the copy leaves its memory";

} // namespace emu

using namespace emu;

extern "C" {

/* ---- copies */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t handle) {
    if (emu::must_fail("cudaMemcpyAsync"))
        return emu::runtime_error(cudaErrorInvalidValue, "cudaMemcpyAsync was told to fail");
    stream *s = stream_of(handle);
    bool resolved = resolve(to, from, bytes, &kind);
    bool recorded = resolved && ((kind == cudaMemcpyHostToDevice && pinned_range(from, bytes)) ||
                                 (kind == cudaMemcpyDeviceToHost && pinned_range(to, bytes)));
    if (!recorded && spoils_recording_on(handle, "cudaMemcpy"))
        return cudaErrorStreamCaptureUnsupported;
    if (bytes == 0) return cudaSuccess;
    if (!resolved) return runtime_error(cudaErrorInvalidValue, WRONG_COPY);
    if (recording(handle)) {
        const void *const pointers[] = {to, from};
        record(
            handle, [=](cudaStream_t on) { cudaMemcpyAsync(to, from, bytes, kind, on); }, pointers,
            sizeof pointers);
        return cudaSuccess;
    }
    if (kind == cudaMemcpyHostToHost) {
        settle(s, ALL);
        memmove(to, from, bytes);
        return cudaSuccess;
    }
    stats.host_launches++;
    task copy = {};
    copy.kind = COPY;
    copy.to = to;
    copy.from = from;
    copy.bytes = bytes;
    copy.to_host = kind == cudaMemcpyDeviceToHost;
    if (kind == cudaMemcpyHostToDevice && !pinned_range(from, bytes))
        copy.staged.assign((const char *)from, (const char *)from + bytes);
    queue(s, std::move(copy));
    if (kind == cudaMemcpyDeviceToHost && !pinned_range(to, bytes)) block_for(s, ALL);
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, NULL);
    settle(&legacy, ALL);
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle) {
    if (emu::must_fail("cudaMemsetAsync"))
        return emu::runtime_error(cudaErrorInvalidValue, "cudaMemsetAsync was told to fail");
    if (bytes == 0) return cudaSuccess;
    if (!device_range(to, bytes))
        return runtime_error(cudaErrorInvalidValue, "cudaMemset: outside of device memory");
    if (recording(handle)) {
        record(
            handle, [=](cudaStream_t on) { cudaMemsetAsync(to, value, bytes, on); }, &to,
            sizeof to);
        return cudaSuccess;
    }
    stats.host_launches++;
    task fill = {};
    fill.kind = FILL;
    fill.to = to;
    fill.bytes = bytes;
    fill.value = value;
    queue(stream_of(handle), std::move(fill));
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- streams */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
    if (emu::must_fail("cudaStreamCreateWithFlags"))
        return emu::runtime_error(cudaErrorUnknown, "cudaStreamCreateWithFlags was told to fail");
    stream *s = new stream();
    s->blocking = !(flags & cudaStreamNonBlocking);
    s->device = current_device();
    streams.push_back(s);
    *handle = (cudaStream_t)s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *handle) {
    return cudaStreamCreateWithFlags(handle, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority) {
    cudaError_t error = cudaStreamCreateWithFlags(handle, flags);
    if (error == cudaSuccess) stream_of(*handle)->priority = priority;
    return error;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest) {
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    stream *s = stream_of(handle);
    if (s == &legacy || !exists(s))
        return runtime_error(cudaErrorInvalidResourceHandle, "cudaStreamDestroy");
    settle(s, ALL);
    streams.erase(std::find(streams.begin(), streams.end(), s));
#ifdef EMU_TSAN
    if (s->tsan) __tsan_destroy_fiber(s->tsan);
#endif
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    if (emu::must_fail("cudaStreamSynchronize"))
        return emu::runtime_error(cudaErrorLaunchFailure, "cudaStreamSynchronize was told to fail");
    if (spoils_recording_on(handle, "cudaStreamSynchronize")) return last_error;
    order_with_legacy(stream_of(handle));
    block_for(stream_of(handle), ALL);
    return last_error;
}

/* Each query runs one task. */
cudaError_t cudaStreamQuery(cudaStream_t handle) {
    if (!is_pending(stream_of(handle), ALL)) return cudaStreamSynchronize(handle);
    advance(stream_of(handle), ALL);
    return cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void) {
    if (spoils_recording("cudaDeviceSynchronize")) return last_error;
    streams_finish();
    return last_error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t mark, unsigned) {
    const event *e = (const event *)mark;
    if (!e) return runtime_error(cudaErrorInvalidResourceHandle, "cudaStreamWaitEvent");
    if (recording(handle) || e->graph) return record_wait(handle, e);
    if (!e->on) return cudaSuccess; /* as in CUDA, an unrecorded event needs no wait */
    task wait = {};
    wait.kind = WAIT;
    wait.other = e->on;
    wait.until = e->number;
    append(stream_of(handle), std::move(wait));
    return cudaSuccess;
}

} // extern "C"
