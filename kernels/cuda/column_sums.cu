/* dbias += the column sums of a matrix: the gradient of a bias.
 *
 * The matrix is read once, 2 or 4 bytes per element, and nothing else of that size moves: the
 * limit is memory bandwidth. A block owns 256 columns, 8 for each lane of a warp, and one group of
 * rows, which its warps take turns in; a second kernel adds up the groups. */
#include "kernels/cuda/partials.h"

enum {
    TILE_WARPS = 8,
    TILE_COLUMNS = WARP * PACK,
    ROWS_AT_ONCE = 4, /* loads that a thread has in flight */
    GROUP_ROWS_MIN = 2 * TILE_WARPS * ROWS_AT_ONCE,
    BLOCKS_WANTED = 2048, /* some rounds of blocks on any GPU, so that the last one costs little */
};

/* How rows are split: by shape only. */
static int64_t rows_per_group(int64_t rows, int64_t columns) {
    int64_t groups = BLOCKS_WANTED / blocks_of(columns, TILE_COLUMNS);
    int64_t group_rows = blocks_of(rows, groups > 0 ? groups : 1);
    if (group_rows < GROUP_ROWS_MIN) return GROUP_ROWS_MIN;
    return blocks_of(group_rows, TILE_WARPS) * TILE_WARPS;
}

static int64_t groups_of(const struct tensor *b) {
    int64_t rows = tensor_rows(b);
    return blocks_of(rows, rows_per_group(rows, tensor_columns(b)));
}

/* partials [groups, columns]; grid: column tiles x groups. */
template <typename T, bool PACKED>
static __global__ void __launch_bounds__(TILE_WARPS *WARP)
    column_sums_kernel(float *__restrict__ partials, const T *__restrict__ b, int64_t rows,
                       int64_t columns, int64_t group_rows) {
    __shared__ float part[TILE_WARPS][TILE_COLUMNS];
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t tile = (int64_t)blockIdx.x * TILE_COLUMNS, column = tile + lane * PACK;
    int count = columns_from(column, columns);
    int64_t first = blockIdx.y * group_rows;
    int64_t last = first + group_rows < rows ? first + group_rows : rows;
    float sum[PACK] = {0};
    if (count > 0) {
        for (int64_t row = first + warp; row < last; row += ROWS_AT_ONCE * TILE_WARPS) {
            float values[ROWS_AT_ONCE][PACK] = {{0}};
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                if (row + i * TILE_WARPS < last)
                    load_columns<PACKED>(values[i], b + (row + i * TILE_WARPS) * columns + column,
                                         count);
#pragma unroll
            for (int i = 0; i < ROWS_AT_ONCE; i++)
                for (int k = 0; k < PACK; k++) sum[k] += values[i][k];
        }
    }
    store_pack(&part[warp][lane * PACK], sum);
    __syncthreads();
    int own = (int)threadIdx.x;
    if (tile + own >= columns) return;
    float total = 0;
    for (int i = 0; i < TILE_WARPS; i++) total += part[i][own];
    partials[blockIdx.y * columns + tile + own] = total;
}

size_t cuda_column_sums_bytes(const struct backend *be, const struct tensor *b) {
    (void)be;
    return (size_t)(groups_of(b) * tensor_columns(b)) * sizeof(float);
}

void cuda_column_sums(struct backend *be, const struct tensor *dbias, const struct tensor *b,
                      void *scratch) {
    int64_t rows = tensor_rows(b), columns = tensor_columns(b), groups = groups_of(b);
    float *partials = (float *)scratch;
    assert(tensor_count(dbias) == columns && groups <= 65535);
    if (rows == 0) return;
    dim3 grid((unsigned)blocks_of(columns, TILE_COLUMNS), (unsigned)groups);
    int64_t group_rows = rows_per_group(rows, columns);
    cudaStream_t stream = cuda_state(be)->compute;
    STORAGE_SWITCH(b->dtype, T, {
        if (rows_are_packed(b))
            LAUNCH((column_sums_kernel<T, true>), grid, TILE_WARPS * WARP, 0, stream, partials,
                   (const T *)b->data, rows, columns, group_rows);
        else
            LAUNCH((column_sums_kernel<T, false>), grid, TILE_WARPS * WARP, 0, stream, partials,
                   (const T *)b->data, rows, columns, group_rows);
    });
    add_partials(be, dbias, NULL, partials, groups);
    cuda_launched(be, "column_sums");
}
