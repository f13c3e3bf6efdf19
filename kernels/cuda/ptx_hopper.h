/* Hopper's instructions (sm_90a): barriers in shared memory that count bytes, tensor copies (TMA),
 * and products of whole warp groups (wgmma). As in ptx.h, the tests run
 * test/cuda_emulator/ptx_hopper_emulated.h instead: keep both in step.
 *
 * Tiles in shared memory have rows of 128 bytes, 64 values of 16 bits, and start at multiples of
 * 1024 bytes: 16-byte chunk c of row r is stored at chunk c ^ (r % 8), as
 * CU_TENSOR_MAP_SWIZZLE_128B writes them and wgmma reads them (PTX ISA, "Asynchronous Warpgroup
 * Level Matrix Instructions"). */
#pragma once

#include <cuda.h>

#include "kernels/cuda/ptx.h"

/* A barrier of a block: a phase ends once `count` threads and all expected bytes have arrived. */
typedef uint64_t phase_barrier;

/* Columns of a tile; rows of an accumulator of a warp group, and its values in a thread; threads of
 * a warp group. */
enum { TILE_VALUES = 64, GROUP_ROWS = 64, GROUP_SUMS = 32, GROUP_THREADS = 128 };
/* In bytes. The 128-byte swizzle repeats every 1024 bytes of the absolute shared address, so a tile
 * that begins elsewhere is read permuted. */
enum { TILE_ALIGNMENT = 1024 };

#ifdef __CUDACC__
#if defined __CUDA_ARCH__ && !defined __CUDA_ARCH_FEAT_SM90_ALL
#define SM90A(...) __trap()
#else
#define SM90A(...) asm volatile(__VA_ARGS__)
#endif

/* Declares the block's dynamic shared memory for swizzled tiles. */
#define DYNAMIC_TILES(name)                     \
    extern __shared__ __align__(TILE_ALIGNMENT) \
    unsigned char dynamic_tiles[];              \
    unsigned char *name = dynamic_tiles

static __device__ __forceinline__ void phase_init(phase_barrier *barrier, int count) {
    SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
          : "memory");
}
/* After this, and after a barrier of the block, all threads may use the initialized barriers. */
static __device__ __forceinline__ void phase_init_done() {
    SM90A("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void phase_arrive(phase_barrier *barrier) {
    SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/* Arrives, and adds `bytes` of copies to the phase. */
static __device__ __forceinline__ void phase_arrive_expecting(phase_barrier *barrier, int bytes) {
    SM90A("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
          "r"(bytes)
          : "memory");
}
/* Waits until the phase of this parity (0 for the first) has ended. */
static __device__ __forceinline__ void phase_wait(phase_barrier *barrier, int parity) {
    uint32_t done = 0;
    do {
        SM90A("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
              "selp.u32 %0, 1, 0, p; }"
              : "=r"(done)
              : "r"(shared_address(barrier)), "r"(parity)
              : "memory");
    } while (!done);
}

/* Starts to copy the box of the map at these coordinates, innermost first, to a tile; elements
 * outside the tensor are 0. The barrier counts the bytes. Called by one thread. */
static __device__ __forceinline__ void tensor_copy(void *to, const CUtensorMap *map, int x, int y,
                                                   int z, int w, phase_barrier *barrier) {
    SM90A("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
          "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
          "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
          : "memory");
}

/* Fetches the map itself, so that the first copy does not wait for it. */
static __device__ __forceinline__ void tensor_map_prefetch(const CUtensorMap *map) {
    SM90A("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Stores four 8 x 8 matrices of 16 bits: lane l gives the address of row l % 8 of matrix l / 8, and
 * r[m] holds elements l % 4 * 2 and the next of row l / 4 of matrix m. */
static __device__ __forceinline__ void stmatrix_x4(shared_pointer row, const uint32_t r[4]) {
    SM90A("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(row), "r"(r[0]),
          "r"(r[1]), "r"(r[2]), "r"(r[3])
          : "memory");
}

/* Makes this thread's stores to shared memory visible to wgmma and tensor copies. */
static __device__ __forceinline__ void shared_stores_done() {
    SM90A("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Changes the registers of each thread of a warp group, all of whose warps call it: from those that
 * the kernel was launched with to more, which others have given, or to fewer. A multiple of 8. */
template <int registers> static __device__ __forceinline__ void group_takes_registers() {
    SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> static __device__ __forceinline__ void group_gives_registers() {
    SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Required before the first product, and after any other use of its registers. */
static __device__ __forceinline__ void group_fence() {
    SM90A("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void group_commit() {
    SM90A("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most `pending` committed groups of products are unfinished. */
template <int pending> static __device__ __forceinline__ void group_wait() {
    SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* The matrix descriptor of a tile: 8 rows are 1024 bytes, swizzled over 128. */
static __device__ __forceinline__ uint64_t tile_descriptor(const void *tile) {
    return (uint64_t)(shared_address(tile) >> 4 & 0x3fff) | (uint64_t)1 << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

#define GROUP_D4(d, i) d(i), d(i + 1), d(i + 2), d(i + 3)
#define GROUP_D32(d, i)                                                          \
    GROUP_D4(d, i), GROUP_D4(d, i + 4), GROUP_D4(d, i + 8), GROUP_D4(d, i + 12), \
        GROUP_D4(d, i + 16), GROUP_D4(d, i + 20), GROUP_D4(d, i + 24), GROUP_D4(d, i + 28)
#define GROUP_NEW(i) "=f"(d[i])
#define GROUP_OLD(i) "+f"(d[i])
#define GROUP_OPEN(add, n, type)                                                  \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; "                                 \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " "            \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20," \
    "%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define GROUP_SUM(type, add) GROUP_OPEN(add, "64", type) "}, "
#define GROUP_WIDE_SUM(type, add)                                                   \
    GROUP_OPEN(add, "128", type)                                                    \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50," \
    "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
#define GROUP_TILES(name, type, transposed_a)                                                  \
    template <int TRANSPOSED, int ADD>                                                         \
    static __device__ __forceinline__ void name(float d[GROUP_SUMS], uint64_t a, uint64_t b) { \
        if (ADD)                                                                               \
            SM90A(GROUP_SUM(type, "1") "%32, %33, p, 1, 1, " transposed_a ", %34; }"           \
                  : GROUP_D32(GROUP_OLD, 0)                                                    \
                  : "l"(a), "l"(b), "n"(TRANSPOSED));                                          \
        else                                                                                   \
            SM90A(GROUP_SUM(type, "0") "%32, %33, p, 1, 1, " transposed_a ", %34; }"           \
                  : GROUP_D32(GROUP_NEW, 0)                                                    \
                  : "l"(a), "l"(b), "n"(TRANSPOSED));                                          \
    }
#define GROUP_PRODUCT(name, type)                                                           \
    GROUP_TILES(name, type, "0")                                                            \
    GROUP_TILES(name##_transposed, type, "1")                                               \
    template <int TRANSPOSED, int ADD>                                                      \
    static __device__ __forceinline__ void name(float d[GROUP_SUMS], const uint32_t a[4],   \
                                                uint64_t b) {                               \
        if (ADD)                                                                            \
            SM90A(GROUP_SUM(type, "1") "{%32,%33,%34,%35}, %36, p, 1, 1, %37; }"            \
                  : GROUP_D32(GROUP_OLD, 0)                                                 \
                  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));   \
        else                                                                                \
            SM90A(GROUP_SUM(type, "0") "{%32,%33,%34,%35}, %36, p, 1, 1, %37; }"            \
                  : GROUP_D32(GROUP_NEW, 0)                                                 \
                  : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TRANSPOSED));   \
    }                                                                                       \
    template <int ADD>                                                                      \
    static __device__ __forceinline__ void name##_wide(float d[2 * GROUP_SUMS], uint64_t a, \
                                                       uint64_t b) {                        \
        if (ADD)                                                                            \
            SM90A(GROUP_WIDE_SUM(type, "1") "%64, %65, p, 1, 1, 0, 0; }"                    \
                  : GROUP_D32(GROUP_OLD, 0), GROUP_D32(GROUP_OLD, 32)                       \
                  : "l"(a), "l"(b));                                                        \
        else                                                                                \
            SM90A(GROUP_WIDE_SUM(type, "0") "%64, %65, p, 1, 1, 0, 0; }"                    \
                  : GROUP_D32(GROUP_NEW, 0), GROUP_D32(GROUP_NEW, 32)                       \
                  : "l"(a), "l"(b));                                                        \
    }
/* d [64, 64] = A [64, 16] B [16, 64], plus d if ADD. A: the tile's rows, 16 columns from where the
 * descriptor begins; or in registers, in the layout of mma_m16n8k16, 16 rows a warp. B: TRANSPOSED
 * 0: the 64 rows of a tile are the columns of B, of which it has 16 values; 1: 16 rows of a tile
 * are the rows of B. d has the layout of mma's accumulators, 8 columns after 8 columns.
 * _transposed: 16 rows of a tile are the columns of A. _wide: B has 128 columns, the rows of two
 * tiles one after the other. */
GROUP_PRODUCT(group_product_bf16, "bf16")
GROUP_PRODUCT(group_product_f16, "f16")
#undef GROUP_PRODUCT
#undef GROUP_TILES
#undef GROUP_WIDE_SUM
#undef GROUP_SUM
#undef GROUP_OPEN
#undef GROUP_OLD
#undef GROUP_NEW
#undef GROUP_D32
#undef GROUP_D4

/* to[i] += values[i] in global memory, 16 bytes aligned, rounded to nearest; subnormal results
 * become 0. Nothing waits for it but a release by this thread or one that it meets. */
static __device__ __forceinline__ void add_to_global(float *to, const float values[4]) {
    SM90A("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
          "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
          : "memory");
}

#undef SM90A

#endif
