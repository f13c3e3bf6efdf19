/* Limits of the emulated device, where kernels could depend on them: constants are those of an
 * H100, functions those of its compute capability. */
#ifndef TEST_CUDA_EMULATOR_LIMITS_H
#define TEST_CUDA_EMULATOR_LIMITS_H

#include <stddef.h>

namespace emu {

enum {
    MULTIPROCESSORS = 4, /* few: grids sized by them stay small */
    BLOCKS_PER_MULTIPROCESSOR = 32,
    REGISTERS = 65536,
    SHARED_DEFAULT = 48 << 10,
    SHARED_MOST = 228 << 10,   /* the largest of all capabilities */
    SHARED_RESERVED = 1 << 10, /* per block */
    LAUNCH_QUEUE = 1024, /* launches that the host may be ahead of a stream: about as many as on
                            GPUs */
};
int threads_per_multiprocessor();
size_t shared_per_multiprocessor();
size_t shared_per_block(); /* with cudaFuncSetAttribute, static and dynamic */
static const size_t DEVICE_MEMORY = (size_t)16 << 30;

/* Returns the maximum threads of a block of the kernel: its __launch_bounds__, or MAX_THREADS
 * without them. */
int launch_bounds(const void *kernel);

/* Returns the maximum dynamic shared memory of the kernel: what cudaFuncSetAttribute allows,
 * else SHARED_DEFAULT minus its static memory. */
size_t shared_limit(const void *kernel);

/* Returns how many blocks a multiprocessor holds at once, by threads and shared memory. */
int blocks_held(const void *kernel, int threads, size_t shared_bytes);

/* Records how much static shared memory the kernel's first blocks use. Called after a block has
 * run. A variable counts in full as soon as anything is written to it. */
size_t static_shared(const void *kernel);

} // namespace emu

#endif
