/* Layouts of tensor cores as CUTLASS's CuTe headers define them, in plain numbers. oracle.cpp alone
 * includes those headers, because one file cannot include them and the emulator. */
#pragma once

#include <cuda.h>
#include <stdint.h>

namespace oracle {

enum operand { A, B, C };
enum major { K_MAJOR, MN_MAJOR }; /* as the instruction's bit has it */

/* Position in a matrix: (m, k) of A, (n, k) of B, (m, n) of the accumulators C. */
struct coord {
    int row, column;
};

/* Position of value `value` in the fragment of a lane, for mma.sync m16n8k16, or of a thread of a
 * warp group, for wgmma m64n64k16, whose B is not in registers. The same for fp16 and bf16. */
coord mma_coord(operand which, int lane, int value);
coord wgmma_coord(operand which, int thread, int value);

/* Index, among all bits that ldmatrix .x4 moves, of bit `bit` in the row whose address the lane
 * gives, and in the four registers that the lane receives. */
int ldmatrix_source(bool trans, int lane, int bit);
int ldmatrix_destination(bool trans, int lane, int bit);

/* Offset of a value, in values, in a tile of 64 rows and `width` (64 or 128) columns of 16 bits in
 * shared memory with the 128-byte swizzle. K_MAJOR: columns are k, rows m or n. MN_MAJOR: columns
 * are n, rows k. */
int tile_offset(major order, int width, int row, int column);

/* Descriptor by make_gmma_desc of a wgmma's operand in such a tile at `address`, for k from 16 step
 * on and n from 64 block on. */
uint64_t descriptor(major order, int width, uint32_t address, int step, int block);

/* Arguments of cuTensorMapEncodeTiled; strides[0] is 0. */
struct tensor_map {
    int type, interleave, swizzle, fill;
    uint32_t rank;
    uint64_t base, sizes[5], strides[5], box[5], steps[5];
};
/* Defines a function with its arguments, which stores them. */
#define RECORD_TENSOR_MAP(name, recorded)                                                       \
    CUresult CUDAAPI name(CUtensorMap *, CUtensorMapDataType type, cuuint32_t rank, void *base, \
                          const cuuint64_t *sizes, const cuuint64_t *strides,                   \
                          const cuuint32_t *box, const cuuint32_t *steps,                       \
                          CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,         \
                          CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {               \
        recorded = {type, interleave, swizzle, fill, rank, (uint64_t)base, {}, {}, {}, {}};     \
        for (uint32_t d = 0; d < rank; d++) {                                                   \
            recorded.sizes[d] = sizes[d], recorded.strides[d] = d ? strides[d - 1] : 0;         \
            recorded.box[d] = box[d], recorded.steps[d] = steps[d];                             \
        }                                                                                       \
        return CUDA_SUCCESS;                                                                    \
    }

/* Map of make_tma_copy for tiles of 64 rows and 64 columns of a tensor [batch, rows, heads, width],
 * half: fp16, otherwise bf16. Or for rows of an fp32 tensor [batch, heads, rows, 128]. */
tensor_map map_of_heads(bool half, int width, int rows, int heads, int batch, uint64_t base);
tensor_map map_of_floats(int rows, int heads, int batch, uint64_t base);

/* Slot and parity of step `step` in a pipeline of four stages. */
struct pipeline_state {
    int index, phase;
};
pipeline_state consumer_state(int step);
pipeline_state producer_state(int step);

const char *version();

} // namespace oracle
