/* The emulated machine as the built-ins and the libraries beside it see it.
 *
 * Every CUDA thread of a block is a fiber; blocks run one after another on one thread of the host.
 * A launch runs to its end before it returns; copies between host and device are put off as long
 * as the streams and events allow (see streams.cpp). */
#ifndef TEST_CUDA_EMULATOR_MACHINE_H
#define TEST_CUDA_EMULATOR_MACHINE_H

#include <cuda_runtime.h>
#include <memory>
#include <stdint.h>

namespace emu {

/* Source position of a call in a kernel. Built-ins take EMU_SITE as their last two parameters and
 * hand on EMU_HERE. (As one struct with a default, g++ 12 would name this header.) */
struct site {
    const char *file;
    int line;
};
#define EMU_SITE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define EMU_HERE (emu::site{file_, line_})

/* For what the emulator does on behalf of other lanes: no access of the kernel's. */
#define EMU_NO_TSAN __attribute__((no_sanitize("thread")))

/* ---- launches */

struct launch {
    const char *name;
    const void *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
};

/* Calls body(argument) once for each thread of each block; where a graph is recorded on the stream,
 * later, with what `keep` made of the argument. A mistake ends the launch: it is printed and
 * becomes the runtime's last error. */
void run(const launch &what, void (*body)(void *), void *argument,
         std::shared_ptr<void> (*keep)(const void *argument));

/* Reports a mistake of the running thread. */
[[noreturn]] void fail(site at, const char *format, ...) __attribute__((format(printf, 2, 3)));

void *dynamic_shared();                /* of this block, aligned to 1024 bytes */
unsigned shared_offset(const void *p); /* as __cvta_generic_to_shared would give it */
int lane();

/* ---- meeting */

/* Waits for count threads at barrier `id` (0..15); count 0: all of the block. Returns the sum of
 * `value` over them. */
int barrier(int id, int count, const char *name, site at, int value = 0);

/* All lanes of mask meet; the last one runs `function` on the payloads of all 32 lanes. All must
 * come by the same line. orders_memory: what a lane did before is seen by all after. */
typedef void collective_function(unsigned mask, void **payload, site at);
void collective(const char *name, unsigned mask, void *payload, collective_function *function,
                site at, bool orders_memory = false);

/* ---- work a thread starts and waits for in groups: put off until then, as the hardware may */

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

/* cp.async: the destination reads as NaN from the start of the copy to the wait. */
void cp_async(void *to, const void *from, unsigned bytes, unsigned from_bytes, site at);

void count_ldmatrix(unsigned conflicts);
void count_graph_launch();

/* ---- device memory, for libraries that work on it (fake_cublaslt.cpp) */

bool device_range(const void *p, size_t bytes); /* is all of it in one allocation? */

/* Brackets work on a stream: what was queued before is done, and device memory may be touched
 * (under AddressSanitizer the host may not do so otherwise). */
void work_begin(cudaStream_t stream);
void work_end();

/* Reports memory that a library reads or writes between the two. */
void touched(const void *p, size_t bytes, bool written);

/* The same for a library that does not know its stream: does what is queued on any. */
void device_access(bool on);

/* Work that a library queues: done by run(argument) once, when the stream gets there, and writes
 * into [to, to + bytes) alone. */
void queue_work(cudaStream_t stream, void (*run)(void *argument), void *argument, void *to,
                size_t bytes);

/* Like work_begin, but leaves undone what queue_work has put there, unless it writes into those
 * bytes: what a library reads at once although the stream would come to it later. */
void inputs_begin(cudaStream_t stream, const void *from, size_t bytes);

/* With several devices (CUDA_EMULATOR_DEVICES): the current one, and that of a stream. */
int current_device();
int device_of_stream(cudaStream_t stream);

int capability(); /* 90 for sm_90 */

/* Lets time pass on the clock of events, which is the processor time of the process (a busy machine
 * does not change it) and all that passed in this way. */
void time_passes(double milliseconds);

/* True if this call has to fail; see control.h. */
bool must_fail(const char *call);

/* Notes an error of a runtime call and says on stderr what was wrong. Returns it. */
cudaError_t runtime_error(cudaError_t error, const char *what);

} // namespace emu

#endif
