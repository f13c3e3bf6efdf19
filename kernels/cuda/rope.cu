/* Rotary position embedding, in place. Bytes per element: read and written once; the angles come
 * from cache. The limit is memory bandwidth.
 *
 * A thread processes a pack of columns of the lower half of one head, and those half a head
 * above. */
#include "kernels/cuda/columns.h"

enum { THREADS = 256 };

struct rope {
    const float *angles;      /* [T, D] */
    const int32_t *positions; /* [N], or NULL */
    int64_t rows, columns, sequence_length, heads, half;
    float sign;
};

template <bool PACKED, typename T>
static __global__ void __launch_bounds__(THREADS) rope_kernel(T *x, struct rope a) {
    int64_t packs = (a.half + PACK - 1) / PACK;
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t column = index % packs * PACK, head = index / packs % a.heads;
    int64_t row = index / packs / a.heads;
    if (row >= a.rows) return;
    int count = columns_from(column, a.half);
    int64_t position = a.positions ? a.positions[row] : row % a.sequence_length;
    const float *angles = a.angles + position * 2 * a.half + column;
    T *lower = x + row * a.columns + head * 2 * a.half + column, *upper = lower + a.half;
    float cosine[PACK], sine[PACK], low[PACK], high[PACK];
    load_columns<PACKED>(low, lower, count);
    load_columns<PACKED>(high, upper, count);
    load_columns<PACKED>(cosine, angles, count);
    load_columns<PACKED>(sine, angles + a.half, count);
    for (int i = 0; i < PACK; i++) {
        float before = low[i];
        sine[i] *= a.sign;
        low[i] = before * cosine[i] - high[i] * sine[i];
        high[i] = high[i] * cosine[i] + before * sine[i];
    }
    store_columns<PACKED>(lower, low, count);
    store_columns<PACKED>(upper, high, count);
}

template <typename T>
static void launch(struct backend *be, const struct rope_args *args, const struct rope *a) {
    bool packed =
        rows_are_packed(args->inout) && rows_are_packed(args->angles) && a->half % PACK == 0;
    unsigned blocks = (unsigned)blocks_of(a->rows * a->heads * blocks_of(a->half, PACK), THREADS);
    LAUNCH((packed ? rope_kernel<true, T> : rope_kernel<false, T>), blocks, THREADS, 0,
           cuda_state(be)->compute, (T *)args->inout->data, *a);
}

void cuda_rope(struct backend *be, const struct rope_args *args) {
    int64_t size = tensor_columns(args->angles);
    const struct rope a = {
        .angles = (const float *)args->angles->data,
        .positions = args->positions,
        .rows = tensor_rows(args->inout),
        .columns = tensor_columns(args->inout),
        .sequence_length = args->sequence_length,
        .heads = args->heads,
        .half = size / 2,
        .sign = args->inverse ? -1.0f : 1.0f,
    };
    assert(size % 2 == 0 && a.heads * size <= a.columns && args->angles->dtype == DTYPE_F32);
    if (a.rows == 0) return;
    STORAGE_SWITCH(args->inout->dtype, T, (launch<T>(be, args, &a)));
    cuda_launched(be, "rope");
}
