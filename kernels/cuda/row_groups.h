/* The first half of column sums computed by kernels that read a matrix; partials.h has the second
 * half.
 *
 * A block processes 256 columns, PACK for each lane of a warp, and one group of rows. Its warps
 * alternate over the rows, several rows at once so that their loads are in flight together. */
#pragma once

#include "kernels/cuda/partials.h"

enum {
    TILE_WARPS = 8,
    TILE_COLUMNS = WARP * PACK,
    ROWS_AT_ONCE = 4, /* loads that a thread has in flight, of each operand */
    GROUP_ROWS_MIN = 2 * TILE_WARPS * ROWS_AT_ONCE,
    BLOCKS_WANTED =
        2048, /* several waves of blocks on any GPU, so that the last one costs little */
};

/* Row groups of a matrix, split by its shape only. */
struct row_groups {
    int64_t rows, columns;
    int64_t group_rows, groups;
};

static inline struct row_groups row_groups_of(const struct tensor *matrix) {
    struct row_groups cut = {tensor_rows(matrix), tensor_columns(matrix), GROUP_ROWS_MIN, 0};
    int64_t groups = BLOCKS_WANTED / blocks_of(cut.columns, TILE_COLUMNS);
    int64_t group_rows = blocks_of(cut.rows, groups > 0 ? groups : 1);
    if (group_rows >= GROUP_ROWS_MIN)
        cut.group_rows = blocks_of(group_rows, TILE_WARPS) * TILE_WARPS;
    cut.groups = blocks_of(cut.rows, cut.group_rows);
    return cut;
}

/* Bytes of partial sums, [groups, columns] floats. */
static inline size_t row_groups_bytes(const struct tensor *matrix) {
    struct row_groups cut = row_groups_of(matrix);
    return (size_t)(cut.groups * cut.columns) * sizeof(float);
}

static inline dim3 row_groups_grid(const struct row_groups *cut) {
    assert(cut->groups <= 65535);
    return dim3((unsigned)blocks_of(cut->columns, TILE_COLUMNS), (unsigned)cut->groups);
}

/* Columns of a thread, and rows of its block. */
struct own_rows {
    int64_t column, first, last;
    int count; /* number of existing columns; 0 or less: none */
};

static __device__ __forceinline__ struct own_rows own_rows_of(const struct row_groups &cut) {
    struct own_rows own;
    own.column = (int64_t)blockIdx.x * TILE_COLUMNS + (int)threadIdx.x % WARP * PACK;
    own.count = columns_from(own.column, cut.columns);
    own.first = blockIdx.y * cut.group_rows;
    own.last = own.first + cut.group_rows < cut.rows ? own.first + cut.group_rows : cut.rows;
    return own;
}

/* Adds up the sums of the block's warps, each of its own rows, and stores them in partials. */
static __device__ __forceinline__ void store_partials(float *partials, const float sum[PACK],
                                                      const struct row_groups &cut) {
    __shared__ __align__(16) float part[TILE_WARPS][TILE_COLUMNS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, own = (int)threadIdx.x;
    int64_t column = (int64_t)blockIdx.x * TILE_COLUMNS + own;
    store_pack(&part[warp][lane * PACK], sum);
    __syncthreads();
    if (column >= cut.columns) return;
    float total = 0;
    for (int i = 0; i < TILE_WARPS; i++) total += part[i][own];
    partials[blockIdx.y * cut.columns + column] = total;
}
