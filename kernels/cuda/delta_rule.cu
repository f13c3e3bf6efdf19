/* The gated delta rule: kernels/delta_chunk.h, with a block for each sequence and key head, which
 * takes chunk after chunk. Matrices are in global memory, as they are more than shared memory
 * holds, and are read through the L1 cache.
 *
 * Products are of TF32 on tensor cores. An operand is the sum of two numbers of TF32, and the
 * product of the two lower ones is left out: about as exact as fp32. */
#include "kernels/cuda/partials.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"

enum {
    THREADS = 256,
    BLOCKS_MAX = 132, /* blocks take further tasks in turn, so that scratch memory has a bound */
    TILE_ROWS = 16,   /* of a warp */
    TILE_PARTS = 4,   /* of 8 columns each */
};

#define DELTA_FUNCTION       static __device__
#define EACH_INDEX(i, count) for (int i = (int)threadIdx.x; i < (count); i += THREADS)
#define EACH_ELEMENT(i, rows, j, columns)                                      \
    for (int at_ = (int)threadIdx.x, i = at_ / (columns), j = at_ % (columns); \
         at_ < (rows) * (columns); at_ += THREADS, i = at_ / (columns), j = at_ % (columns))
#define BARRIER() __syncthreads()

/* value = high + low, up to 2^-22 of it. */
static __device__ __forceinline__ void split(uint32_t *high, uint32_t *low, float value) {
    *high = tf32_bits(value);
    *low = tf32_bits(value - __uint_as_float(*high));
}

/* sums += a b for 16 rows, of which the last 8 exist if `whole`, and `parts` parts of columns. The
 * fragments are those of mma_m16n8k8, and a and b begin at a lane's elements. */
static __device__ __forceinline__ void tile_product(float sums[TILE_PARTS][4], const float *a,
                                                    int row_step, int step, const float *b,
                                                    int columns, int count, bool whole, int parts) {
#pragma unroll 2
    for (int l = 0; l < count; l += 8, a += 8 * step, b += 8 * columns) {
        uint32_t a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            split(&a_high[i], &a_low[i],
                  i % 2 == 0 || whole ? a[i % 2 * 8 * row_step + i / 2 * 4 * step] : 0);
#pragma unroll
        for (int part = 0; part < TILE_PARTS; part++) {
            if (part >= parts) break;
            for (int i = 0; i < 2; i++) split(&b_high[i], &b_low[i], b[i * 4 * columns + part * 8]);
            mma_m16n8k8_tf32_f32(sums[part], a_low, b_high, sums[part]);
            mma_m16n8k8_tf32_f32(sums[part], a_high, b_low, sums[part]);
            mma_m16n8k8_tf32_f32(sums[part], a_high, b_high, sums[part]);
        }
    }
}

/* Inlined 20 times it would take minutes to compile. */
static __device__ __attribute__((noinline)) void delta_product(float *out, int rows, int columns,
                                                               const float *a, int row_step,
                                                               int step, const float *b, int count,
                                                               bool add) {
    const int group = (int)threadIdx.x % WARP / 4, member = (int)threadIdx.x % 4;
    const int across = (columns / 8 + TILE_PARTS - 1) / TILE_PARTS;
    const int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS * across;
    for (int tile = (int)threadIdx.x / WARP; tile < tiles; tile += THREADS / WARP) {
        const int row = tile / across * TILE_ROWS, column = tile % across * TILE_PARTS * 8;
        const int parts = min((columns - column) / 8, (int)TILE_PARTS);
        const bool whole = row + 8 < rows;
        float sums[TILE_PARTS][4] = {{0}};
        float *to = out + (row + group) * columns + column + 2 * member;
        tile_product(sums, a + (row + group) * row_step + member * step, row_step, step,
                     b + member * columns + column + group, columns, count, whole, parts);
#pragma unroll
        for (int part = 0; part < TILE_PARTS; part++)
            for (int i = 0; part < parts && i < (whole ? 4 : 2); i++) {
                float *element = to + i / 2 * 8 * columns + part * 8 + i % 2;
                *element = (add ? *element : 0) + sums[part][i];
            }
    }
    BARRIER();
}

static __device__ void delta_transpose(float *out, const float *in, int rows, int columns) {
    EACH_ELEMENT(j, columns, i, rows) {
        out[j * rows + i] = in[i * columns + j];
    }
    BARRIER();
}

static __device__ void delta_dots(float *out, const float *a, const float *b, int rows,
                                  int columns) {
    for (int i = (int)threadIdx.x / WARP; i < rows; i += THREADS / WARP) {
        float sum = 0;
        for (int j = (int)threadIdx.x % WARP; j < columns; j += WARP)
            sum += a[i * columns + j] * b[i * columns + j];
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0) out[i] = sum;
    }
    BARRIER();
}

static __device__ void delta_load(float *to, int width, int padded, const struct tensor *from,
                                  int64_t row, int64_t column, int rows, int columns) {
    const int64_t stride = from->shape[2];
    STORAGE_SWITCH(from->dtype, T, {
        const T *in = (const T *)from->data + row * stride + column;
        EACH_ELEMENT(i, padded, j, width) {
            to[i * width + j] = i < rows && j < columns ? widen(in[i * stride + j]) : 0;
        }
    });
    BARRIER();
}

static __device__ void delta_store(const struct tensor *to, int64_t row, int64_t column, int rows,
                                   int columns, const float *from, int width) {
    const int64_t stride = to->shape[2];
    STORAGE_SWITCH(to->dtype, T, {
        T *out = (T *)to->data + row * stride + column;
        EACH_ELEMENT(i, rows, j, columns) {
            out[i * stride + j] = narrow<T>(from[i * width + j]);
        }
    });
    BARRIER();
}

#include "kernels/delta_chunk.h"

template <bool BACKWARD>
static __global__ void __launch_bounds__(THREADS)
    delta_rule_kernel(struct delta_rule r, float *scratch, int64_t floats, int tasks) {
    float *memory = scratch + blockIdx.x * floats;
    for (int task = (int)blockIdx.x; task < tasks; task += (int)gridDim.x) {
        if (BACKWARD) delta_backward(&r, memory, task / r.key_heads, task % r.key_heads);
        else delta_forward(&r, memory, task / r.key_heads, task % r.key_heads);
    }
}

static int tasks_of(const struct delta_rule *r) {
    return (int)r->qkv.shape[0] * r->key_heads;
}

static int blocks_for(const struct delta_rule *r) {
    return tasks_of(r) < BLOCKS_MAX ? tasks_of(r) : (int)BLOCKS_MAX;
}

size_t cuda_delta_rule_forward_scratch(struct backend *be,
                                       const struct delta_rule_forward_args *args) {
    const struct delta_rule r = delta_rule_of_forward(args);
    (void)be;
    return (size_t)(blocks_for(&r) * delta_chunk_at(NULL, &r, false).used) * sizeof(float);
}

void cuda_delta_rule_forward(struct backend *be, const struct delta_rule_forward_args *args) {
    const struct delta_rule r = delta_rule_of_forward(args);
    float *scratch = (float *)backend_workspace(be, cuda_delta_rule_forward_scratch(be, args));
    if (tasks_of(&r) == 0) return;
    LAUNCH(delta_rule_kernel<false>, (unsigned)blocks_for(&r), THREADS, 0, cuda_state(be)->compute,
           r, scratch, delta_chunk_at(NULL, &r, false).used, tasks_of(&r));
    cuda_launched(be, "delta_rule_forward");
}

/* Floats of the partial sums of dA_log and ddt_bias, which come before the buffers. */
static int64_t sums_floats(const struct delta_rule *r) {
    return round_up(r->qkv.shape[0] * 2 * r->value_heads, WARP);
}

size_t cuda_delta_rule_backward_scratch(struct backend *be,
                                        const struct delta_rule_backward_args *args) {
    const struct delta_rule r = delta_rule_of_backward(args, NULL);
    const int64_t buffers = blocks_for(&r) * delta_chunk_at(NULL, &r, true).used;
    (void)be;
    return (size_t)(sums_floats(&r) + buffers) * sizeof(float);
}

void cuda_delta_rule_backward(struct backend *be, const struct delta_rule_backward_args *args) {
    float *partials = (float *)backend_workspace(be, cuda_delta_rule_backward_scratch(be, args));
    const struct delta_rule r = delta_rule_of_backward(args, partials);
    if (tasks_of(&r) == 0) return;
    LAUNCH(delta_rule_kernel<true>, (unsigned)blocks_for(&r), THREADS, 0, cuda_state(be)->compute,
           r, partials + sums_floats(&r), delta_chunk_at(NULL, &r, true).used, tasks_of(&r));
    struct sums sums = sums_of(args->dA_log);
    sums_add(&sums, args->ddt_bias);
    add_partials(be, &sums, partials, r.qkv.shape[0]);
    cuda_launched(be, "delta_rule_backward");
}
