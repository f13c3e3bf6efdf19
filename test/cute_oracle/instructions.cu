/* Each instruction of ptx.h and ptx_hopper.h in a kernel of its own: as the project writes it, or
 * with -DNVIDIA as CUTLASS and libcu++ do. check_instructions.py compares the machine code. */
#ifdef NVIDIA
#include <cuda/ptx>
#include <cuda_pipeline.h>
#include <cute/tensor.hpp>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/mma_sm80.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/functional.h>
using namespace cute;
using namespace cutlass::arch;
#define PICK(ours, theirs) theirs
#else
#include "kernels/cuda/ptx_hopper.h"
#define PICK(ours, theirs) ours
#endif

extern __shared__ __align__(1024) unsigned char memory[];
#define BARRIER  ((uint64_t *)memory)
#define FOUR(x)  (x)[0], (x)[1], (x)[2], (x)[3]
#define EIGHT(x) FOUR(x), FOUR((x) + 4)
#define SUMS(x)  EIGHT(x), EIGHT((x) + 8), EIGHT((x) + 16), EIGHT((x) + 24)
#define INSTRUCTION(name, ours, theirs, ...)       \
    extern "C" __global__ void name(__VA_ARGS__) { \
        PICK(ours, theirs);                        \
    }

INSTRUCTION(mma_bf16, mma_m16n8k16_bf16_f32(d, a, b, c),
            SM80_16x8x16_F32BF16BF16F32_TN::fma(FOUR(d), FOUR(a), b[0], b[1], FOUR(c)), float *d,
            const uint32_t *a, const uint32_t *b, const float *c)
INSTRUCTION(mma_f16, mma_m16n8k16_f16_f32(d, a, b, c),
            SM80_16x8x16_F32F16F16F32_TN::fma(FOUR(d), FOUR(a), b[0], b[1], FOUR(c)), float *d,
            const uint32_t *a, const uint32_t *b, const float *c)
INSTRUCTION(ldmatrix, ldmatrix_x4(r, shared_address(memory)),
            SM75_U32x4_LDSM_N::copy(*(const uint128_t *)memory, FOUR(r)), uint32_t *r)
INSTRUCTION(ldmatrix_trans, ldmatrix_x4_trans(r, shared_address(memory)),
            SM75_U16x8_LDSM_T::copy(*(const uint128_t *)memory, FOUR(r)), uint32_t *r)
INSTRUCTION(stmatrix, stmatrix_x4(shared_pointer_to(memory), r),
            SM90_U32x4_STSM_N::copy(FOUR(r), *(uint128_t *)memory), const uint32_t *r)
INSTRUCTION(copy_16, cp_async_16(memory, from, true), __pipeline_memcpy_async(memory, from, 16),
            const void *from)
INSTRUCTION(copy_zeros, cp_async_16(memory, from, false),
            __pipeline_memcpy_async(memory, from, 16, 16), const void *from)
INSTRUCTION(copy_commit, cp_async_commit(), cute::cp_async_fence())
INSTRUCTION(copy_wait, ::cp_async_wait<1>(), cute::cp_async_wait<1>())
INSTRUCTION(bar_sync, named_barrier(id, count),
            NamedBarrier::sync(count, (ReservedNamedBarriers)id), int id, int count)
INSTRUCTION(reciprocal, *x = reciprocal_approx(*x),
            *x = cutlass::reciprocal_approximate_ftz<float>()(*x), float *x)
INSTRUCTION(to_e4m3, *y = (uint8_t)e4m3_code(x), *y = cutlass::float_e4m3_t::from_float(x).storage,
            uint8_t *y, float x)
INSTRUCTION(to_e5m2, *y = (uint8_t)e5m2_code(x), *y = cutlass::float_e5m2_t::from_float(x).storage,
            uint8_t *y, float x)

INSTRUCTION(barrier_init, phase_init(BARRIER, count), initialize_barrier(*BARRIER, count),
            int count)
INSTRUCTION(barrier_init_done, phase_init_done(), fence_barrier_init())
INSTRUCTION(barrier_arrive, phase_arrive(BARRIER), ClusterBarrier::arrive(BARRIER))
INSTRUCTION(barrier_expect, phase_arrive_expecting(BARRIER, bytes),
            ClusterTransactionBarrier::arrive_and_expect_tx(BARRIER, bytes), int bytes)
INSTRUCTION(barrier_wait, phase_wait(BARRIER, parity),
            while (!ClusterBarrier::try_wait(BARRIER, parity)), int parity)
/* CUTLASS's copy always has a cache hint, libcu++'s has none. */
INSTRUCTION(copy_4d, tensor_copy(memory + 1024, &map, x, y, z, w, BARRIER),
            cuda::ptx::cp_async_bulk_tensor(cuda::ptx::space_cluster, cuda::ptx::space_global,
                                            memory + 1024, &map, {x, y, z, w}, BARRIER),
            const __grid_constant__ CUtensorMap map, int x, int y, int z, int w)
INSTRUCTION(stores_done, shared_stores_done(), fence_view_async_shared())

INSTRUCTION(wgmma_fence, group_fence(), warpgroup_arrive())
INSTRUCTION(wgmma_commit, group_commit(), warpgroup_commit_batch())
INSTRUCTION(wgmma_wait, group_wait<1>(), warpgroup_wait<1>())
/* A in a tile, in registers; B K-major, MN-major; d = A B, d += A B. */
#define WGMMA(name, ours, theirs, order, add, A, our_a, ...)                                       \
    extern "C" __global__ void name##_##order##add(float *out, A, uint64_t b) {                    \
        float d[32];                                                                               \
        for (int i = 0; i < 32; i++) d[i] = out[i];                                                \
        PICK((ours<order, add>(d, our_a, b)), (theirs<GMMA::Major::K, (GMMA::Major)order>::fma(    \
                                                  __VA_ARGS__, b, SUMS(d), (GMMA::ScaleOut)add))); \
        for (int i = 0; i < 32; i++) out[i] = d[i];                                                \
    }
#define WGMMAS(type, ours, theirs, order, add)                                    \
    WGMMA(wgmma_##type##_tile, ours, theirs##_SS, order, add, uint64_t a, a, a)   \
    WGMMA(wgmma_##type##_registers, ours, theirs##_RS, order, add, const uint4 a, \
          (const uint32_t *)&a, a.x, a.y, a.z, a.w)
#define ALL_WGMMAS(type, ours, theirs) \
    WGMMAS(type, ours, theirs, 0, 0)   \
    WGMMAS(type, ours, theirs, 0, 1)   \
    WGMMAS(type, ours, theirs, 1, 0)   \
    WGMMAS(type, ours, theirs, 1, 1)
ALL_WGMMAS(bf16, group_product_bf16, SM90::GMMA::MMA_64x64x16_F32BF16BF16)
ALL_WGMMAS(f16, group_product_f16, SM90::GMMA::MMA_64x64x16_F32F16F16)
/* A MN-major, and B with 128 columns. */
#define FORM(name, ours, theirs, add, sums, all_sums)                              \
    extern "C" __global__ void name(float *out, uint64_t a, uint64_t b) {          \
        float d[sums];                                                             \
        for (int i = 0; i < sums; i++) d[i] = out[i];                              \
        PICK((ours(d, a, b)), (theirs::fma(a, b, all_sums, (GMMA::ScaleOut)add))); \
        for (int i = 0; i < sums; i++) out[i] = d[i];                              \
    }
#define COMMA     ,
#define WIDE_SUMS SUMS(d), SUMS(d + 32)
#define FORMS(type, product, theirs, add)                                                        \
    FORM(wgmma_##type##_columns##add, product##_transposed<1 COMMA add>,                         \
         SM90::GMMA::MMA_64x64x16_##theirs##_SS<GMMA::Major::MN COMMA GMMA::Major::MN>, add, 32, \
         SUMS(d))                                                                                \
    FORM(wgmma_##type##_wide##add, product##_wide<add>,                                          \
         SM90::GMMA::MMA_64x128x16_##theirs##_SS<GMMA::Major::K COMMA GMMA::Major::K>, add, 64,  \
         WIDE_SUMS)
FORMS(bf16, group_product_bf16, F32BF16BF16, 0)
FORMS(bf16, group_product_bf16, F32BF16BF16, 1)
FORMS(f16, group_product_f16, F32F16F16, 0)
FORMS(f16, group_product_f16, F32F16F16, 1)

INSTRUCTION(descriptor, *out = tile_descriptor(memory + at),
            auto start = make_smem_ptr((half_t *)(memory + at));
            auto tile = tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>(), Shape<_64, _64>());
            *out = GMMA::make_gmma_desc<GMMA::Major::K>(
                local_tile(make_tensor(start, tile), Shape<_64, _16>(), make_coord(_0(), _0()))),
            uint64_t *out, int at)
