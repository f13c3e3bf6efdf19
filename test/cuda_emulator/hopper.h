/* Interface between hopper.cpp and cuda_emulator.cpp, which runs blocks. */
#ifndef TEST_CUDA_EMULATOR_HOPPER_H
#define TEST_CUDA_EMULATOR_HOPPER_H

#include <stddef.h>

#include "kernels/cuda/ptx_hopper.h"

namespace emu {

void hopper_block_begins();
const char *hopper_block_ends(); /* describes unfinished work, or NULL */

} // namespace emu

#endif
