/* The functions of oracle.h, compiled from CUTLASS's unchanged headers by the host's compiler.
 *
 * Two switches of CUTLASS enable device code on the host: addresses of shared memory come from
 * __cvta_generic_to_shared (cute/arch/util.hpp), and tensor maps from a direct call of the driver's
 * function (cutlass/cuda_host_adapter.hpp). Both are defined below. */
#include <cuda.h>
#include <cuda_runtime.h>

#include <assert.h>
#include <stddef.h>

#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED  1
#ifndef __CUDACC_VER_MAJOR__ /* otherwise CUTLASS omits host code of tensor maps */
#define __CUDACC_VER_MAJOR__ (CUDA_VERSION / 1000)
#define __CUDACC_VER_MINOR__ (CUDA_VERSION % 1000 / 10)
#endif
static inline size_t __cvta_generic_to_shared(const void *p) {
    return (size_t)p; /* callers make these pointers from shared addresses */
}
/* Named in device code that is not called. */
static const uint3 threadIdx = {};
static inline void __syncthreads() {}

#include <cute/tensor.hpp>

#include <cute/atom/copy_traits_sm75.hpp>
#include <cute/atom/copy_traits_sm90_tma.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cutlass/pipeline/sm90_pipeline.hpp>
#include <cutlass/version.h>

#include "test/cute_oracle/oracle.h"

using namespace cute;

static_assert((int)GMMA::Major::K == oracle::K_MAJOR && (int)GMMA::Major::MN == oracle::MN_MAJOR);

/* Calls function with the width as a constant. */
template <class F> static auto with_width(int width, F function) {
    assert(width == 64 || width == 128);
    return width == 64 ? function(_64()) : function(_128());
}

/* ---- fragments */

typedef MMA_Traits<SM80_16x8x16_F32F16F16F32_TN> mma;
typedef MMA_Traits<SM80_16x8x16_F32BF16BF16F32_TN> mma_bf16;
static_assert(is_same_v<mma::Shape_MNK, Shape<_16, _8, _16>>);
static_assert(is_same_v<mma::ALayout, mma_bf16::ALayout>);
static_assert(is_same_v<mma::BLayout, mma_bf16::BLayout>);
static_assert(is_same_v<mma::CLayout, mma_bf16::CLayout>);

const auto K = GMMA::Major::K, MN = GMMA::Major::MN;
typedef MMA_Traits<SM90_64x64x16_F32F16F16_RS<K, MN>> wgmma;
typedef MMA_Traits<SM90_64x64x16_F32BF16BF16_RS<K, MN>> wgmma_bf16;
static_assert(is_same_v<wgmma::Shape_MNK, Shape<_64, _64, _16>>);
static_assert(is_same_v<wgmma::ALayout, wgmma_bf16::ALayout>);
static_assert(is_same_v<wgmma::CLayout, wgmma_bf16::CLayout>);
static_assert(is_same_v<wgmma::CLayout, MMA_Traits<SM90_64x64x16_F32F16F16_SS<K, K>>::CLayout>);

/* Layouts of fragments number the positions of a matrix column by column. */
static oracle::coord coord_of(int number, int rows) {
    return {number % rows, number / rows};
}

oracle::coord oracle::mma_coord(operand which, int lane, int value) {
    if (which == A) return coord_of(mma::ALayout()(lane, value), 16);
    if (which == B) return coord_of(mma::BLayout()(lane, value), 8);
    return coord_of(mma::CLayout()(lane, value), 16);
}

oracle::coord oracle::wgmma_coord(operand which, int thread, int value) {
    assert(which != B);
    if (which == A) return coord_of(wgmma::ALayout()(thread, value), 64);
    return coord_of(wgmma::CLayout()(thread, value), 64);
}

int oracle::ldmatrix_source(bool trans, int lane, int bit) {
    if (trans) return Copy_Traits<SM75_U16x8_LDSM_T>::SrcLayout()(lane, bit);
    return Copy_Traits<SM75_U32x4_LDSM_N>::SrcLayout()(lane, bit);
}
int oracle::ldmatrix_destination(bool trans, int lane, int bit) {
    if (trans) return Copy_Traits<SM75_U16x8_LDSM_T>::DstLayout()(lane, bit);
    return Copy_Traits<SM75_U32x4_LDSM_N>::DstLayout()(lane, bit);
}

/* ---- tiles in shared memory and their descriptors */

template <int D> static auto k_major_tile() { /* (m or n, k) */
    return tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>(), Shape<_64, Int<D>>());
}
/* (n, k). Atoms of 64 n by 8 k follow each other along k first, as tensor copies write them. */
template <int D> static auto mn_major_tile() {
    return tile_to_shape(GMMA::Layout_MN_SW128_Atom<half_t>(), Shape<Int<D>, _64>(),
                         Step<_2, _1>());
}

int oracle::tile_offset(major order, int width, int row, int column) {
    return with_width(width, [=](auto D) -> int {
        auto by_k = as_position_independent_swizzle_layout(k_major_tile<D>());
        auto by_mn = as_position_independent_swizzle_layout(mn_major_tile<D>());
        return order == K_MAJOR ? by_k(row, column) : by_mn(column, row);
    });
}

template <GMMA::Major ORDER, class Layout>
static uint64_t descriptor_of(Layout layout, uint32_t address, int step, int block) {
    auto start = make_smem_ptr(reinterpret_cast<half_t *>((uintptr_t)address));
    auto tile = make_tensor(start, layout);
    return GMMA::make_gmma_desc<ORDER>(
        local_tile(tile, Shape<_64, _16>(), make_coord(block, step)));
}

uint64_t oracle::descriptor(major order, int width, uint32_t address, int step, int block) {
    return with_width(width, [=](auto D) {
        if (order == MN_MAJOR) return descriptor_of<MN>(mn_major_tile<D>(), address, step, block);
        return descriptor_of<K>(k_major_tile<D>(), address, step, block);
    });
}

/* ---- tensor maps */

static oracle::tensor_map encoded;

extern "C" RECORD_TENSOR_MAP(cuTensorMapEncodeTiled, encoded);

template <class T, int D> static void copy_of_heads(int rows, int heads, int batch, uint64_t base) {
    auto all = make_tensor(make_gmem_ptr(reinterpret_cast<T *>(base)),
                           make_layout(make_shape(rows, Int<D>(), heads, batch),
                                       make_stride(heads * D, _1(), D, rows * heads * D)));
    make_tma_copy(SM90_TMA_LOAD(), all, k_major_tile<64>(), Shape<_64, _64>(), _1());
}

oracle::tensor_map oracle::map_of_heads(bool half, int width, int rows, int heads, int batch,
                                        uint64_t base) {
    return with_width(width, [=](auto D) {
        if (half) copy_of_heads<half_t, D>(rows, heads, batch, base);
        else copy_of_heads<bfloat16_t, D>(rows, heads, batch, base);
        return encoded;
    });
}

oracle::tensor_map oracle::map_of_floats(int rows, int heads, int batch, uint64_t base) {
    auto all = make_tensor(make_gmem_ptr(reinterpret_cast<float *>(base)),
                           make_layout(make_shape(_128(), rows, heads, batch),
                                       make_stride(_1(), 128, 128 * rows, 128 * rows * heads)));
    make_tma_copy(SM90_TMA_LOAD(), all, Layout<_128>(), Shape<_128>(), _1());
    return encoded;
}

/* ---- pipelines */

template <class State> static oracle::pipeline_state advanced(State state, int steps) {
    for (int i = 0; i < steps; i++) ++state;
    return {(int)state.index(), (int)state.phase()};
}
oracle::pipeline_state oracle::consumer_state(int step) {
    return advanced(cutlass::PipelineState<4>(), step);
}
oracle::pipeline_state oracle::producer_state(int step) {
    return advanced(cutlass::make_producer_start_state<cutlass::PipelineTmaAsync<4>>(), step);
}

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
const char *oracle::version() {
    return TEXT(CUTLASS_MAJOR) "." TEXT(CUTLASS_MINOR) "." TEXT(CUTLASS_PATCH);
}
