/* Limits of the emulated device: those of an H100 where kernels could depend on them. */
#ifndef TEST_CUDA_EMULATOR_LIMITS_H
#define TEST_CUDA_EMULATOR_LIMITS_H

#include <stddef.h>

namespace emu {

enum {
    MULTIPROCESSORS = 4, /* few: grids sized by them stay small */
    THREADS_PER_MULTIPROCESSOR = 2048,
    BLOCKS_PER_MULTIPROCESSOR = 32,
    REGISTERS = 65536,
    SHARED_DEFAULT = 48 << 10,
    SHARED_OPT_IN = 227 << 10,
    SHARED_PER_MULTIPROCESSOR = 228 << 10,
    SHARED_RESERVED = 1 << 10, /* per block */
};
static const size_t DEVICE_MEMORY = (size_t)16 << 30;

/* Returns the maximum threads of a block of the kernel: its __launch_bounds__, or MAX_THREADS
 * without them. */
int launch_bounds(const void *kernel);

/* Returns the maximum dynamic shared memory of the kernel: what cudaFuncSetAttribute allows,
 * else SHARED_DEFAULT minus its static memory. */
size_t shared_limit(const void *kernel);

/* Records how much static shared memory the kernel's first blocks use. Called after a block has
 * run. A variable counts in full as soon as anything is written to it. */
size_t static_shared(const void *kernel);

} // namespace emu

#endif
