/* Warp-level PTX that CUDA C++ has no function for. Inline assembly is in this file and in
 * ptx_hopper.h only. The tests run test/cuda_emulator/ptx_emulated.h instead: keep both in step. */
#pragma once

#include "kernels/cuda/device.h"

/* exp(x) = exp2(x log2(e)): the GPU has exp2 in hardware. */
#define LOG2_OF_E 1.4426950408889634f
#define LN_OF_2   0.6931471805599453f

#ifdef __CUDACC__
/* Instructions introduced with sm_80. Kernels that use them are not launched on older GPUs, but
 * have to compile for them. Copies between pointers are done at once there. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ < 800
#define SM80(...)      __trap()
#define COPIES_AT_ONCE true
#else
#define SM80(...)      asm volatile(__VA_ARGS__)
#define COPIES_AT_ONCE false
#endif

#define MMA(name, shape, type)                                                              \
    static __device__ __forceinline__ void name(float d[4], const uint32_t a[4],            \
                                                const uint32_t b[2], const float c[4]) {    \
        SM80("mma.sync.aligned." shape ".row.col.f32." type "." type ".f32 "                \
             "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"                    \
             : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                               \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), \
               "f"(c[1]), "f"(c[2]), "f"(c[3]));                                            \
    }
MMA(mma_m16n8k16_bf16_f32, "m16n8k16", "bf16")
MMA(mma_m16n8k16_f16_f32, "m16n8k16", "f16")
MMA(mma_m16n8k8_tf32_f32, "m16n8k8", "tf32") /* operands are tf32_bits */
#undef MMA

/* The value rounded to TF32, 10 bits of fraction, as fp32: to nearest, ties away from zero. */
static __device__ __forceinline__ uint32_t tf32_bits(float value) {
    uint32_t bits = 0;
#if !defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
#endif
    return bits;
}

/* The same for a mma's operand that is at most 2^127. The bits below TF32's, which mma does not
 * read, are left over. */
static __device__ __forceinline__ uint32_t tf32_bits_of_small(float value) {
    return __float_as_uint(value) + 0x1000;
}

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void cp_async_commit() {
    if (!COPIES_AT_ONCE) SM80("cp.async.commit_group;" ::: "memory");
}
template <int pending> static __device__ __forceinline__ void cp_async_wait() {
    if (!COPIES_AT_ONCE) SM80("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
/* Barrier with an id of 1..15 among count threads. */
static __device__ __forceinline__ void named_barrier(int id, int count) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

/* Waits until an int in global memory that only grows is at least `least`; returns it. What was
 * written before semaphore_set is then visible to this thread. */
static __device__ __forceinline__ int semaphore_wait(const int *semaphore, int least) {
    int value;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                     : "=r"(value)
                     : "l"(__cvta_generic_to_global(semaphore))
                     : "memory");
    } while (value < least);
    return value;
}
/* Writes of threads that have met this one at a barrier come before the new value, too. */
static __device__ __forceinline__ void semaphore_set(int *semaphore, int value) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(semaphore)),
                 "r"(value)
                 : "memory");
}

/* 2^x within 2 ulp; results below 2^-126 become 0. */
static __device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x within 1 ulp; results below 2^-126 become 0. */
static __device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Conversion of two values to 8 bits each, the second one in the upper half: to nearest, ties to
 * even; infinity and everything else beyond the largest finite value become that; NaN becomes a
 * NaN. */
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 890
#define FLOAT8_INSTRUCTIONS true
#define FLOAT8_PAIR(name, type)                                                               \
    static __device__ __forceinline__ uint32_t name(float low, float high) {                  \
        uint16_t codes;                                                                       \
        asm("cvt.rn.satfinite." type ".f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low)); \
        return codes;                                                                         \
    }
#else
#define FLOAT8_INSTRUCTIONS false
#define FLOAT8_PAIR(name, type)                                     \
    static __device__ __forceinline__ uint32_t name(float, float) { \
        __trap();                                                   \
        return 0;                                                   \
    }
#endif
FLOAT8_PAIR(e4m3_pair, "e4m3x2")
FLOAT8_PAIR(e5m2_pair, "e5m2x2")
#undef FLOAT8_PAIR

/* Shared-memory addresses that are opaque to the compiler. Otherwise it keeps a register for each
 * sum of a thread's offset and a constant, although the instruction can add the constant. */
typedef uint32_t shared_pointer;
static __device__ __forceinline__ shared_pointer shared_pointer_to(const void *p) {
    shared_pointer pointer = shared_address(p);
    asm("" : "+r"(pointer));
    return pointer;
}
static __device__ __forceinline__ shared_pointer opaque_address(shared_pointer pointer) {
    asm("" : "+r"(pointer));
    return pointer;
}
template <typename T> static __device__ __forceinline__ const T *opaque(const T *global) {
    asm("" : "+l"(global));
    return global;
}
static __device__ __forceinline__ uint32_t load_shared(shared_pointer from) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}
#define LDMATRIX_X4(name, trans)                                                              \
    static __device__ __forceinline__ void name(uint32_t r[4], shared_pointer row) {          \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" trans ".shared.b16 {%0,%1,%2,%3}, [%4];" \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                         \
                     : "r"(row)                                                               \
                     : "memory");                                                             \
    }
LDMATRIX_X4(ldmatrix_x4, "")
LDMATRIX_X4(ldmatrix_x4_trans, ".trans")
#undef LDMATRIX_X4

/* Copies 16 bytes from global to shared memory; without valid, writes 16 zero bytes: src may then
 * point anywhere. */
static __device__ __forceinline__ void cp_async_16(shared_pointer dst, const void *src,
                                                   bool valid) {
    SM80("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(valid ? 16 : 0)
         : "memory");
}

/* The same for an address that the compiler may analyse. */
static __device__ __forceinline__ void cp_async_16(void *dst, const void *src, bool valid = true) {
    if (!COPIES_AT_ONCE) cp_async_16(shared_address(dst), src, valid);
    else *(uint4 *)dst = valid ? *(const uint4 *)src : make_uint4(0, 0, 0, 0);
}

/* Copies 8 bytes from global to shared memory. */
static __device__ __forceinline__ void cp_async_8(void *dst, const void *src) {
    if (COPIES_AT_ONCE) *(uint2 *)dst = *(const uint2 *)src;
    else
        SM80("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(dst)), "l"(src)
             : "memory");
}

/* threadIdx.x and blockIdx.x, reread, so that values derived from them need no register between two
 * uses far apart. */
static __device__ __forceinline__ int reread_thread_index() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
static __device__ __forceinline__ int reread_block_index() {
    int x;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
    return x;
}

#endif
