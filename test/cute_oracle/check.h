/* Shared by check_emulator.cu and check_attention.cu, which are compiled as kernels are in an
 * emulated build. Kernels run on the host there, so they call the oracle themselves. */
#pragma once

#include <stdint.h>
#include <string.h>

#include <type_traits>

#include "kernels/cuda/device.h"
#include "test/cute_oracle/oracle.h"

using oracle::coord;

void check_attention(); /* check_attention.cu */

/* begin prints the name of a section. same counts a comparison, and prints the first ones that
 * differ; a, b and c say where. end prints the counts of the section. */
void begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void same(double ours, double theirs, const char *what, int a = 0, int b = 0, int c = 0);
void same_bits(uint64_t ours, uint64_t theirs, const char *what, int a = 0, int b = 0, int c = 0);
void end();

/* Runs one block and waits for it. */
template <class... P>
static void launch_block(void (*kernel)(P...), int threads, size_t shared, P... arguments) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    LAUNCH(kernel, 1, (unsigned)threads, shared, 0, arguments...);
    if (cudaGetLastError() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess)
        same(0, 1, "a launch failed");
}

/* ---- values of 16 bits */

#define HALF (std::is_same<T, __half>::value)

template <typename T> static uint16_t bits_of(float x) {
    return HALF ? __half_as_ushort(__float2half(x)) : __bfloat16_as_ushort(__float2bfloat16(x));
}
/* Bits of some 30,000 different normal values, and the values. */
static inline uint16_t code(int i) {
    return (uint16_t)(0x0400 + i % 0x7000);
}
template <typename T> static float coded(int i) {
    return HALF ? emu::f16_value(code(i)) : emu::bf16_value(code(i));
}
/* A small whole number. */
static inline float whole(int row, int column) {
    return (float)((row * 31 + column * 17 + row * column) % 7 - 3);
}
/* Value of 16 bits in a fragment. */
static inline uint16_t fragment_bits(const uint32_t *fragment, int value) {
    return (uint16_t)(fragment[value / 2] >> value % 2 * 16);
}
static inline void set_fragment(uint32_t *fragment, int value, uint16_t bits) {
    fragment[value / 2] |= (uint32_t)bits << value % 2 * 16;
}
static inline void store_bits(void *tile, int offset, uint16_t bits) {
    memcpy((char *)tile + offset * 2, &bits, sizeof bits);
}
