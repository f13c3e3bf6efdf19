/* Cross entropy and its gradient.
 *
 * Rows are as wide as the vocabulary: 50304 logits are 100 KB in 16 bits. Maximum and sum of
 * exponentials are computed in one pass (the sum is rescaled when the maximum grows; Milakov,
 * Gimelshein 2018). A row that fits is kept in shared memory for the gradient, so memory is read
 * once. A block then processes several rows: while it writes the gradient of one, asynchronous
 * copies read the next into the same shared memory. Two such blocks fit on a multiprocessor of an
 * H200; one fits 100 KB, with 512 bytes left.
 *
 * Another kernel, with one block per row, computes losses alone. It also processes rows that are
 * not aligned, and rows that do not fit; it reads those twice, the second time possibly from the L2
 * cache. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/reduce.h"
#include "kernels/softcap.h"

#include <limits.h>

static constexpr float LOWEST = -1e38f; /* an initial offset below any logit */

enum {
    SHORT_THREADS = 128,
    SHORT_COLUMNS = 4096,
    SUM_CHUNKS = 4,                     /* chunks in flight for each thread */
    GRADIENT_CHUNKS = 2,                /* the same for the gradient, which has two arrays */
    AHEAD = 4,                          /* chunks of the next row in flight for each thread */
    BLOCK_ROWS_MIN = 2,                 /* rows of a block that overlaps them */
    STATIC_SHARED = 2 * 1024 / WARP * 4 /* most bytes that block_sum and block_max have */
};

/* Two blocks of 512 threads have 64 registers for each thread; in fp32 one row fills shared memory,
 * so only one block fits. */
static constexpr int long_row_threads(size_t value_bytes) {
    return value_bytes == 4 ? 1024 : 512;
}

/* x - max to base 2 in one multiply-add, where offset = max * LOG2_OF_E as rounded. All terms of a
 * row, and the loss, see the same offset, so that its rounding cancels. */
static __device__ __forceinline__ float exponent(float x, float offset) {
    return fmaf(x, LOG2_OF_E, -offset);
}

struct partial {
    float offset, sum; /* sum: of 2^exponent(x, offset) */
};

/* Adds a chunk of which `left` values belong to the row. */
template <typename T, int N>
static __device__ __forceinline__ void add_chunk(struct partial *to, const struct chunk<T, N> *from,
                                                 int left) {
    float x[N], sum = 0;
    unpack(x, from);
    if (left < N)
        for (int i = 0; i < N; i++) x[i] = i < left ? x[i] : -INFINITY;
    float max = x[0];
    for (int i = 1; i < N; i++) max = fmaxf(max, x[i]);
    float offset = fmaxf(to->offset, max * LOG2_OF_E);
    for (int i = 0; i < N; i++) sum += exp2_approx(exponent(x[i], offset));
    to->sum = to->sum * exp2_approx(to->offset - offset) + sum;
    to->offset = offset;
}

/* Sum of this thread's part of a row, which is copied to `kept` unless that is NULL. The offset
 * starts at a finite value, so that logits of -inf have a probability of 0. */
template <typename T, int N, int THREADS>
static __device__ __forceinline__ struct partial partial_sum(const T *row, struct chunk<T, N> *kept,
                                                             int vocab_size) {
    struct partial partial = {LOWEST, 0};
    for (int first = (int)threadIdx.x * N; first < vocab_size; first += SUM_CHUNKS * THREADS * N) {
        struct chunk<T, N> chunks[SUM_CHUNKS];
        for (int c = 0; c < SUM_CHUNKS; c++) {
            int at = first + c * THREADS * N;
            if (at < vocab_size) chunks[c] = load_chunk<N>(row + at);
        }
        for (int c = 0; c < SUM_CHUNKS; c++) {
            int at = first + c * THREADS * N;
            if (at >= vocab_size) break;
            if (kept) kept[at / N] = chunks[c];
            add_chunk(&partial, &chunks[c], vocab_size - at);
        }
    }
    return partial;
}

struct row {
    int columns, vocab_size, target;
    float offset, sum, scale, inverse_cap; /* inverse_cap: 1 / softcap, or 0 */
};

/* (softmax - one_hot(target)) * scale for the chunk at column `at`, 0 in the padding; if CAPPED,
 * times the slope of softcap, for which the chunk takes registers longer. */
template <bool CAPPED, typename T, int N>
static __device__ __forceinline__ void store_gradient(T *to, const struct chunk<T, N> *from,
                                                      const struct row *row, int at) {
    float x[N], factor = row->scale / row->sum;
    unpack(x, from);
    for (int i = 0; i < N; i++) x[i] = exp2_approx(exponent(x[i], row->offset)) * factor;
    if (row->target >= at && row->target < at + N)
        for (int i = 0; i < N; i++)
            if (at + i == row->target) x[i] -= row->scale;
    if (CAPPED) {
        float y[N];
        unpack(y, from);
        for (int i = 0; i < N; i++) x[i] *= softcap_slope(y[i], row->inverse_cap);
    }
    if (at + N > row->vocab_size)
        for (int i = 0; i < N; i++)
            if (at + i >= row->vocab_size) x[i] = 0;
    store_chunk<N>(to + at, x);
}

/* Each thread processes the chunks that it loaded, and kept, in partial_sum. */
template <bool CAPPED, typename T, int N, int THREADS>
static __device__ __forceinline__ void gradient(T *logits, const struct chunk<T, N> *kept,
                                                const struct row *row) {
    for (int first = (int)threadIdx.x * N; first < row->columns;
         first += GRADIENT_CHUNKS * THREADS * N) {
        struct chunk<T, N> chunks[GRADIENT_CHUNKS];
        for (int c = 0; c < GRADIENT_CHUNKS; c++) {
            int at = first + c * THREADS * N;
            if (at >= row->columns) break;
            if (kept && at < row->vocab_size) chunks[c] = kept[at / N];
            else chunks[c] = load_chunk<N>(logits + at);
        }
        for (int c = 0; c < GRADIENT_CHUNKS; c++) {
            int at = first + c * THREADS * N;
            if (at < row->columns) store_gradient<CAPPED>(logits, &chunks[c], row, at);
        }
    }
}

/* Row whose target is ignored: loss 0, if it has a place, and gradient 0 if `clear`. */
template <typename T, int N, int THREADS>
static __device__ __forceinline__ void ignore_row(T *logits, float *loss, int columns, bool clear) {
    float zeros[N];
    for (int i = 0; i < N; i++) zeros[i] = 0;
    if (threadIdx.x == 0 && loss) *loss = 0;
    if (!clear) return;
    for (int at = (int)threadIdx.x * N; at < columns; at += THREADS * N)
        store_chunk<N>(logits + at, zeros);
}

template <bool CAPPED, typename T, int N, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy_kernel(float *__restrict__ losses, T *logits, const int32_t *__restrict__ targets,
                         const float *__restrict__ loss_scale,
                         const struct step_inputs *__restrict__ inputs,
                         const float *__restrict__ weights, const int32_t *__restrict__ places,
                         int columns, int vocab_size, float inverse_cap, bool keep) {
    typedef struct chunk<T, N> kept_chunk;
    DYNAMIC_SHARED(kept_chunk, shared);
    kept_chunk *kept = keep ? shared : NULL;
    T *values = logits + (int64_t)blockIdx.x * columns;
    const int place = places ? places[blockIdx.x] : (int)blockIdx.x;
    struct row row = {columns, vocab_size, place < 0 ? -1 : targets[place], 0, 0, 0, inverse_cap};
    if (row.target < 0) { /* the same for the whole block */
        ignore_row<T, N, THREADS>(values, place < 0 ? NULL : losses + place, columns,
                                  loss_scale != NULL);
        return;
    }
    float target_logit = widen(values[row.target]); /* before any thread writes its gradient */
    struct partial own = partial_sum<T, N, THREADS>(values, kept, vocab_size);
    row.offset = block_max<THREADS>(own.offset);
    row.sum = block_sum<THREADS>(own.sum * exp2_approx(own.offset - row.offset));
    if (threadIdx.x == 0)
        losses[place] = logf(row.sum) - LN_OF_2 * exponent(target_logit, row.offset);
    if (!loss_scale) return;
    row.scale = *loss_scale * inputs->loss_weight * (weights ? weights[place] : 1.0f);
    gradient<CAPPED, T, N, THREADS>(values, kept, &row);
}

/* One pass over two rows: replaces the logits of `current` by their gradient, chunk by chunk, while
 * the chunks of `next` take their place in shared memory, and adds up those. Either can be NULL. A
 * thread reads only chunks that it copied itself, so no barrier separates copies from uses. */
template <bool CAPPED, typename T, int N, int THREADS>
static __device__ __forceinline__ void gradient_and_sum(struct partial *sum, T *current,
                                                        const T *next, struct chunk<T, N> *kept,
                                                        const struct row *row) {
    float zeros[N];
    for (int i = 0; i < N; i++) zeros[i] = 0;
    int end = row->columns + AHEAD * THREADS * N;
    for (int at = (int)threadIdx.x * N; at < end; at += THREADS * N) {
        bool inside = at < row->columns;
        if (current && inside) {
            if (row->target < 0 || at >= row->vocab_size) store_chunk<N>(current + at, zeros);
            else store_gradient<CAPPED>(current, &kept[at / N], row, at);
        }
        if (next && at < row->vocab_size) cp_async_16(&kept[at / N], next + at);
        cp_async_commit();
        cp_async_wait<AHEAD>();
        int arrived = at - AHEAD * THREADS * N;
        if (next && arrived >= 0 && arrived < row->vocab_size)
            add_chunk(sum, &kept[arrived / N], row->vocab_size - arrived);
    }
}

/* The rows blockIdx.x, blockIdx.x + gridDim.x, ..., kept in shared memory. A row is read while the
 * gradient of the one before is written. */
template <bool CAPPED, typename T, int N, int THREADS>
static __global__ void __launch_bounds__(THREADS)
    kept_cross_entropy_kernel(float *__restrict__ losses, T *logits,
                              const int32_t *__restrict__ targets,
                              const float *__restrict__ loss_scale,
                              const struct step_inputs *__restrict__ inputs,
                              const float *__restrict__ weights,
                              const int32_t *__restrict__ places, int64_t rows, int columns,
                              int vocab_size, float inverse_cap) {
    typedef struct chunk<T, N> kept_chunk;
    DYNAMIC_SHARED(kept_chunk, kept);
    const float scale = *loss_scale * inputs->loss_weight;
    struct row row = {columns, vocab_size, -1, 0, 0, scale, inverse_cap};
    T *current = NULL;
    for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
        T *next = logits + r * columns;
        int64_t place = places ? places[r] : r;
        int target = place < 0 ? -1 : targets[place];
        bool counts = target >= 0;                             /* the same for the whole block */
        float target_logit = counts ? widen(next[target]) : 0; /* before any thread writes there */
        struct partial own = {LOWEST, 0};
        gradient_and_sum<CAPPED, T, N, THREADS>(&own, current, counts ? next : NULL, kept, &row);
        if (counts) {
            row.offset = block_max<THREADS>(own.offset);
            row.sum = block_sum<THREADS>(own.sum * exp2_approx(own.offset - row.offset));
        }
        if (threadIdx.x == 0 && place >= 0)
            losses[place] =
                counts ? logf(row.sum) - LN_OF_2 * exponent(target_logit, row.offset) : 0;
        row.target = target;
        if (weights && counts) row.scale = scale * weights[place];
        current = next;
    }
    gradient_and_sum<CAPPED, T, N, THREADS>(NULL, current, NULL, kept, &row);
}

static float inverse_cap_of(const struct cross_entropy_args *args) {
    return args->softcap > 0 ? 1 / args->softcap : 0;
}

/* As many blocks as the GPU holds at once, but fewer if there are few rows. */
template <bool CAPPED, typename T, int N, int THREADS>
static void launch_kept(struct backend *be, const struct cross_entropy_args *args) {
    const struct cuda_state *cuda = cuda_state(be);
    int64_t rows = tensor_rows(args->logits), columns = tensor_columns(args->logits);
    int64_t blocks = blocks_of(rows, BLOCK_ROWS_MIN);
    size_t bytes = (size_t)columns * sizeof(T);
    const void *kernel = (const void *)kept_cross_entropy_kernel<CAPPED, T, N, THREADS>;
    int held = 1;
    if (!cuda_shared(be, kernel, bytes, "cross_entropy")) return;
    if (cuda_failed(be,
                    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, kernel, THREADS, bytes),
                    "cross_entropy"))
        return;
    if (blocks > (int64_t)held * cuda->multiprocessors)
        blocks = (int64_t)held * cuda->multiprocessors;
    LAUNCH((kept_cross_entropy_kernel<CAPPED, T, N, THREADS>), (unsigned)blocks, THREADS, bytes,
           cuda->compute, args->losses, (T *)args->logits->data, args->targets, args->loss_scale,
           args->inputs, args->weights, args->places, rows, (int)columns, (int)args->vocab_size,
           inverse_cap_of(args));
}

template <bool CAPPED, typename T, int N, int THREADS>
static void launch(struct backend *be, const struct cross_entropy_args *args) {
    const struct cuda_state *cuda = cuda_state(be);
    int64_t rows = tensor_rows(args->logits), columns = tensor_columns(args->logits);
    size_t row_bytes = (size_t)columns * sizeof(T);
    bool keep = args->loss_scale && row_bytes + STATIC_SHARED <= cuda->shared_bytes;
    const void *kernel = (const void *)cross_entropy_kernel<CAPPED, T, N, THREADS>;
    if constexpr (N > 1)
        if (keep) return launch_kept<CAPPED, T, N, THREADS>(be, args);
    if (keep && !cuda_shared(be, kernel, row_bytes, "cross_entropy")) return;
    LAUNCH((cross_entropy_kernel<CAPPED, T, N, THREADS>), (unsigned)rows, THREADS,
           keep ? row_bytes : 0, cuda->compute, args->losses, (T *)args->logits->data,
           args->targets, args->loss_scale, args->inputs, args->weights, args->places, (int)columns,
           (int)args->vocab_size, inverse_cap_of(args), keep);
}

template <bool CAPPED, typename T, int N>
static void launch_for_width(struct backend *be, const struct cross_entropy_args *args) {
    if (args->vocab_size <= SHORT_COLUMNS) launch<CAPPED, T, N, SHORT_THREADS>(be, args);
    else launch<CAPPED, T, N, long_row_threads(sizeof(T))>(be, args);
}

template <bool CAPPED, typename T>
static void launch_for_alignment(struct backend *be, const struct cross_entropy_args *args) {
    constexpr int N = chunk_values(sizeof(T));
    const struct tensor *logits = args->logits;
    if (tensor_columns(logits) % N == 0 && aligned_to(logits->data, N * sizeof(T)))
        launch_for_width<CAPPED, T, N>(be, args);
    else launch_for_width<CAPPED, T, 1>(be, args);
}

void cuda_cross_entropy(struct backend *be, const struct cross_entropy_args *args) {
    const struct tensor *logits = args->logits;
    int64_t columns = tensor_columns(logits);
    assert(args->vocab_size <= columns && columns <= INT_MAX / 2);
    if (tensor_rows(logits) == 0) return;
    STORAGE_SWITCH(logits->dtype, T, {
        if (args->softcap > 0) launch_for_alignment<true, T>(be, args);
        else launch_for_alignment<false, T>(be, args);
    });
    cuda_launched(be, "cross_entropy");
}
