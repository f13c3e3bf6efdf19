/* The emulated machine, as seen by the built-ins and the fake libraries.
 *
 * Every CUDA thread of a block is a fiber; blocks run one after another on one host thread. A
 * launch runs to its end before it returns. Copies between host and device are delayed as long
 * as the streams and events allow (see streams.cpp). */
#ifndef TEST_CUDA_EMULATOR_MACHINE_H
#define TEST_CUDA_EMULATOR_MACHINE_H

#include <cuda_runtime.h>
#include <memory>
#include <stdint.h>

namespace emu {

/* Source position of a call in a kernel. Built-ins take EMU_SITE as their last two parameters
 * and pass EMU_HERE on. (With one struct with a default, g++ 12 would report this header's
 * position.) */
struct site {
    const char *file;
    int line;
};
#define EMU_SITE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define EMU_HERE (emu::site{file_, line_})

/* Marks accesses that the emulator makes on behalf of other lanes, which are not the kernel's. */
#define EMU_NO_TSAN __attribute__((no_sanitize("thread")))

/* ---- launches */

struct launch {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

/* Calls body(argument) once for each thread of each block. While a graph is recorded on the
 * stream, the call is delayed, with the copy of the argument, which has these bytes, that `keep`
 * made. A mistake ends the launch: it is printed and becomes the runtime's last error. */
void run(const launch &what, void (*body)(void *), void *argument,
         std::shared_ptr<void> (*keep)(const void *argument), size_t bytes);

/* Reports a mistake of the running thread. */
[[noreturn]] void fail(site at, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns this block's dynamic memory: an odd multiple of the declared alignment, so that code
 * that needs a larger one fails. */
enum { MOST_ALIGNMENT = 1024 };
void *dynamic_shared(unsigned alignment);
unsigned shared_offset(const void *p); /* the value that __cvta_generic_to_shared returns */
int lane();

/* Reports an address that is not a multiple of `bytes`. */
void check_aligned(const char *what, const void *p, unsigned bytes, site at);

/* ---- barriers and collectives */

/* Waits for `count` threads at barrier `id` (0..15); count 0: all of the block. Returns the sum
 * of `value` over them. */
int barrier(int id, int count, const char *name, site at, int value = 0);

/* Synchronises all lanes of the mask; the last to arrive runs `function` on the payloads of all
 * 32 lanes. All must call from the same source line. orders_memory: what a lane did before is
 * visible to all after. */
typedef void collective_function(unsigned mask, void **payload, site at);
void collective(const char *name, unsigned mask, void *payload, collective_function *function,
                site at, bool orders_memory = false);

/* ---- asynchronous work of a thread, waited for in groups; delayed until the wait, as on
 * hardware */

struct deferred {
    void (*run)(deferred &work);
    void *to;
    const void *from;
    unsigned bytes, from_bytes;
    int group; /* set by defer */
};
void defer(const deferred &work, site at);
void defer_commit();          /* closes the group */
void defer_wait(int pending); /* runs all but the last `pending` closed groups */

/* The semaphore functions of kernels/cuda/ptx.h. */
int semaphore_wait(const int *semaphore, int least, site at);
void semaphore_set(int *semaphore, int value);

/* cp.async: the destination reads as NaN from the start of the copy to the wait. */
void cp_async(void *to, const void *from, unsigned bytes, unsigned from_bytes, site at);

void count_ldmatrix(unsigned conflicts);

/* ---- device memory, for the fake libraries (fake_cublaslt.cpp) */

bool device_range(const void *p, size_t bytes); /* true if the range lies in one allocation */

/* Takes device memory for something that the driver makes at its first use, named by an address.
 * Returns false if there is too little. CUDA_EMULATOR_LAZY has the bytes. */
bool take_lazily(const void *what);

/* Takes and returns device memory of a library. take_memory returns false if there is too little.
 */
bool take_memory(size_t bytes);
void give_memory(size_t bytes);

/* Brackets work on a stream: what was queued before is done, and the host may touch device
 * memory (AddressSanitizer forbids that otherwise). */
void work_begin(cudaStream_t stream);
void work_end();

/* Reports memory that a library reads or writes between work_begin and work_end. */
void touched(const void *p, size_t bytes, bool written);

/* Like work_begin and work_end for a library that does not know its stream: does the work queued
 * on all streams. */
void device_access(bool on);

/* Queues a library's work: run(argument) is called once, when the stream reaches it. It must
 * write into [to, to + bytes) only. Work that waits for other processes has `ready`: while it
 * returns false, queries of events do not do the work. */
void queue_work(cudaStream_t stream, void (*run)(void *argument), bool (*ready)(void *argument),
                void *argument, void *to, size_t bytes);

/* True while the host waits within the runtime, where it can do nothing else. */
bool host_is_blocked();

/* Like work_begin, but skips work from queue_work that does not write into those bytes. For
 * inputs that a library reads at once although the stream would read them later. */
void inputs_begin(cudaStream_t stream, const void *from, size_t bytes);

/* The current device, and that of a stream, if there are several (CUDA_EMULATOR_DEVICES). */
int current_device();
int device_of_stream(cudaStream_t stream);
int priority_of_stream(cudaStream_t stream); /* 0, or less for a higher one */

int capability(); /* 90 for sm_90 */

/* Advances the clock of events by this time. The clock is the processor time of the process,
 * which a busy machine does not change, plus all time added here. */
void time_passes(double milliseconds);

/* True if this call has to fail; see control.h. */
bool must_fail(const char *call);

/* Records an error of a runtime call, explains it on stderr, and returns it. */
cudaError_t runtime_error(cudaError_t error, const char *what);

} // namespace emu

#endif
