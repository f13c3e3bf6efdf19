/* The numbers of the emulated device, those of an H100 where kernels could depend on them. */
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

/* How many threads a block of the kernel may have: what __launch_bounds__ says, MAX_THREADS without
 * it. */
int launch_bounds(const void *kernel);

/* How much dynamic shared memory the kernel may have: what cudaFuncSetAttribute allows, else what
 * its static memory leaves of SHARED_DEFAULT. */
size_t shared_limit(const void *kernel);

/* Called after a block of the kernel has run: how much static shared memory its first blocks have
 * been seen to use. Variables count whole, and if something was written to them. */
size_t static_shared(const void *kernel);

} // namespace emu

#endif
