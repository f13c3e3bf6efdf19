/* Lets the C++ compiler build a .cu file and run its kernels on the CPU. Emulated builds
 * force-include it (-include).
 *
 * Types, prototypes and the host half of bf16 and fp16 come from the real CUDA headers; this
 * file adds what only nvcc provides. Built-ins that kernels/cuda does not use yet are left out:
 * a kernel that needs one does not compile. */
#ifndef TEST_CUDA_EMULATOR_H
#define TEST_CUDA_EMULATOR_H
#ifdef __CUDACC__
#error "cuda_emulator.h is for the host's compiler"
#endif

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/machine.h"

/* Shared variables go into one section, which the emulator fills with NaN before every block. A
 * function that holds one must have internal linkage (static): g++ does not mix data of
 * templates and other data in one section. g++ would align large arrays to 32 bytes; they get the
 * 8 that no type of kernels/cuda exceeds, except where a variable has an __align__. cuda.mk moves
 * each to an odd multiple of its alignment. */
#undef __shared__
#undef __launch_bounds__
#define __shared__                      static __attribute__((section("emu_shared"), used, aligned(8)))
#define __launch_bounds__(threads, ...) /* read by launch_bounds in kernels.cpp */ \
    __attribute__((patchable_function_entry(1 * (threads), 1 * (threads))))

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

/* ---- launching */

namespace emu {

template <class... P> struct launcher {
    void (*kernel)(P...);
    launch what;
    EMU_NO_TSAN void operator()(P... p) const { /* converted once, like a kernel's parameters */
        void (*const called)(P...) = kernel;
        auto body = [=]() EMU_NO_TSAN { called(p...); };
        typedef decltype(body) bound;
        run(
            what, [](void *call) { (*static_cast<bound *>(call))(); }, &body,
            [](const void *call) -> std::shared_ptr<void> {
                return std::make_shared<bound>(*static_cast<const bound *>(call));
            },
            sizeof body);
    }
};

template <class... P>
launcher<P...> make_launcher(const char *name, void (*kernel)(P...), dim3 grid, dim3 block,
                             size_t shared_bytes, cudaStream_t stream) {
    return {kernel, {name, (const void *)kernel, grid, block, shared_bytes, stream}};
}

} // namespace emu

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
    emu::make_launcher(#kernel, kernel, grid, block, shared_bytes, stream)(__VA_ARGS__)

#define DYNAMIC_SHARED(type, name) \
    type *name = static_cast<type *>(emu::dynamic_shared(SHARED_ALIGNMENT))

/* C++ overloads that take a kernel; the CUDA headers declare them for nvcc only. */
template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}
template <class T>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, T *kernel) {
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}

/* ---- barriers */

static inline void __syncthreads(EMU_SITE) {
    emu::barrier(0, 0, "__syncthreads", EMU_HERE);
}
static inline int __syncthreads_count(int predicate, EMU_SITE) {
    return emu::barrier(0, 0, "__syncthreads_count", EMU_HERE, predicate != 0);
}
static inline int __syncthreads_or(int predicate, EMU_SITE) {
    return emu::barrier(0, 0, "__syncthreads_or", EMU_HERE, predicate != 0) != 0;
}
static inline int __syncthreads_and(int predicate, EMU_SITE) {
    return emu::barrier(0, 0, "__syncthreads_and", EMU_HERE, predicate == 0) == 0;
}
static inline void __syncwarp(unsigned mask = ~0u, EMU_SITE) {
    emu::collective(
        "__syncwarp", mask, NULL, [](unsigned, void **, emu::site) {}, EMU_HERE, true);
}
static inline void __threadfence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

/* ---- shuffles, votes, reductions */

namespace emu {

template <class T> struct exchange {
    T in, out;
    int source;
};

template <class T> EMU_NO_TSAN void exchange_all(unsigned mask, void **payload, site at) {
    for (int l = 0; l < 32; l++) {
        if (!(mask >> l & 1)) continue;
        exchange<T> *e = static_cast<exchange<T> *>(payload[l]);
        if (!(mask >> e->source & 1))
            fail(at, "shuffle: lane %d reads lane %d, which is not in mask %08x", l, e->source,
                 mask);
        e->out = static_cast<exchange<T> *>(payload[e->source])->in;
    }
}

template <class T> EMU_NO_TSAN T shuffle(unsigned mask, T value, int source, site at) {
    exchange<T> e{value, value, source};
    collective("shuffle", mask, &e, exchange_all<T>, at);
    return e.out;
}

typedef unsigned combine(unsigned all, unsigned value);
struct vote {
    unsigned in, out;
};

template <combine *function> EMU_NO_TSAN void vote_all(unsigned mask, void **payload, site) {
    int first = __builtin_ctz(mask);
    unsigned all = static_cast<vote *>(payload[first])->in;
    for (int l = first + 1; l < 32; l++)
        if (mask >> l & 1) all = function(all, static_cast<vote *>(payload[l])->in);
    for (int l = first; l < 32; l++)
        if (mask >> l & 1) static_cast<vote *>(payload[l])->out = all;
}

template <combine *function> EMU_NO_TSAN unsigned reduce(unsigned mask, unsigned value, site at) {
    vote v{value, 0};
    collective("vote or reduction", mask, &v, vote_all<function>, at);
    return v.out;
}

static inline unsigned combine_or(unsigned all, unsigned value) {
    return all | value;
}
static inline unsigned combine_and(unsigned all, unsigned value) {
    return all & value;
}
static inline unsigned combine_add(unsigned all, unsigned value) {
    return all + value;
}
static inline unsigned combine_min(unsigned all, unsigned value) {
    return (int)all < (int)value ? all : value;
}
static inline unsigned combine_max(unsigned all, unsigned value) {
    return (int)all > (int)value ? all : value;
}

} // namespace emu

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_SITE) {
    int first = emu::lane() & ~(width - 1);
    return emu::shuffle(mask, value, first | (source & (width - 1)), EMU_HERE);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMU_SITE) {
    int own = emu::lane(), source = own ^ bits;
    bool beyond = (source & ~(width - 1)) > (own & ~(width - 1));
    return emu::shuffle(mask, value, beyond ? own : source, EMU_HERE);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_SITE) {
    int own = emu::lane();
    bool beyond = (own & (width - 1)) + (int)by >= width;
    return emu::shuffle(mask, value, beyond ? own : own + (int)by, EMU_HERE);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, EMU_SITE) {
    int own = emu::lane();
    bool beyond = (own & (width - 1)) < (int)by;
    return emu::shuffle(mask, value, beyond ? own : own - (int)by, EMU_HERE);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_SITE) {
    unsigned bit = predicate ? 1u << emu::lane() : 0;
    return emu::reduce<emu::combine_or>(mask, bit, EMU_HERE);
}
static inline int __any_sync(unsigned mask, int predicate, EMU_SITE) {
    return (int)emu::reduce<emu::combine_or>(mask, predicate != 0, EMU_HERE);
}
static inline int __all_sync(unsigned mask, int predicate, EMU_SITE) {
    return (int)emu::reduce<emu::combine_and>(mask, predicate != 0, EMU_HERE);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value, EMU_SITE) {
    return emu::reduce<emu::combine_add>(mask, value, EMU_HERE);
}
static inline int __reduce_add_sync(unsigned mask, int value, EMU_SITE) {
    return (int)emu::reduce<emu::combine_add>(mask, (unsigned)value, EMU_HERE);
}
static inline int __reduce_min_sync(unsigned mask, int value, EMU_SITE) {
    return (int)emu::reduce<emu::combine_min>(mask, (unsigned)value, EMU_HERE);
}
static inline int __reduce_max_sync(unsigned mask, int value, EMU_SITE) {
    return (int)emu::reduce<emu::combine_max>(mask, (unsigned)value, EMU_HERE);
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned value, EMU_SITE) {
    return emu::reduce<emu::combine_or>(mask, value, EMU_HERE);
}
static inline unsigned __reduce_and_sync(unsigned mask, unsigned value, EMU_SITE) {
    return emu::reduce<emu::combine_and>(mask, value, EMU_HERE);
}

#include "test/cuda_emulator/arithmetic.h"
#include "test/cuda_emulator/ptx_emulated.h"
#include "test/cuda_emulator/ptx_hopper_emulated.h"

#endif
