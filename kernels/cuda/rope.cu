/* Rotary position embedding, in place. Bytes per element: read and written once; the angles come
 * from cache. The limit is memory bandwidth.
 *
 * A thread processes a pack of columns of the lower half of one head, and those half a head
 * above; or of neighbours two packs. */
#include "kernels/cuda/columns.h"

enum { THREADS = 256 };

struct rope {
    const float *angles, *query_angles; /* [T, D] */
    const int32_t *positions;           /* [N], or NULL */
    int64_t rows, columns, sequence_length, heads, query_heads, head_dim, half;
    float sign;
};

/* Pairs of neighbours in two packs become their first and second values, or again neighbours. */
static __device__ __forceinline__ void exchange_pairs(float low[PACK], float high[PACK],
                                                      bool join) {
    float from[2 * PACK];
    for (int i = 0; i < PACK; i++) {
        from[join ? 2 * i : i] = low[i];
        from[join ? 2 * i + 1 : PACK + i] = high[i];
    }
    for (int i = 0; i < PACK; i++) {
        low[i] = from[join ? i : 2 * i];
        high[i] = from[join ? PACK + i : 2 * i + 1];
    }
}

template <bool PACKED, bool NEIGHBOURS, typename T>
static __global__ void __launch_bounds__(THREADS) rope_kernel(T *x, struct rope a) {
    int64_t packs = (a.half + PACK - 1) / PACK;
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t column = index % packs * PACK, head = index / packs % a.heads;
    int64_t row = index / packs / a.heads;
    if (row >= a.rows) return;
    int count = columns_from(column, a.half);
    int64_t position = a.positions ? a.positions[row] : row % a.sequence_length;
    const float *angles =
        (head < a.query_heads ? a.query_angles : a.angles) + position * 2 * a.half + column;
    T *lower = x + row * a.columns + head * a.head_dim + (NEIGHBOURS ? 2 : 1) * column;
    T *upper = lower + (NEIGHBOURS ? (int64_t)PACK : a.half);
    const int first = NEIGHBOURS ? columns_from(0, 2 * count) : count;
    const int second = NEIGHBOURS ? 2 * count - first : count;
    float cosine[PACK], sine[PACK], low[PACK], high[PACK];
    load_columns<PACKED>(low, lower, first);
    load_columns<PACKED>(high, upper, second);
    if (NEIGHBOURS) exchange_pairs(low, high, false);
    load_columns<PACKED>(cosine, angles, count);
    load_columns<PACKED>(sine, angles + a.half, count);
    for (int i = 0; i < PACK; i++) {
        float before = low[i];
        sine[i] *= a.sign;
        low[i] = before * cosine[i] - high[i] * sine[i];
        high[i] = high[i] * cosine[i] + before * sine[i];
    }
    if (NEIGHBOURS) exchange_pairs(low, high, true);
    store_columns<PACKED>(lower, low, first);
    store_columns<PACKED>(upper, high, second);
}

template <typename T>
static void launch(struct backend *be, const struct rope_args *args, const struct rope *a) {
    bool packed = rows_are_packed(args->inout) && rows_are_packed(args->angles) &&
                  a->half % PACK == 0 && a->head_dim % PACK == 0;
    unsigned blocks = (unsigned)blocks_of(a->rows * a->heads * blocks_of(a->half, PACK), THREADS);
    LAUNCH((args->neighbours ? packed ? rope_kernel<true, true, T> : rope_kernel<false, true, T>
            : packed ? rope_kernel<true, false, T>
                             : rope_kernel<false, false, T>),
           blocks, THREADS, 0, cuda_state(be)->compute, (T *)args->inout->data, *a);
}

void cuda_rope(struct backend *be, const struct rope_args *args) {
    int64_t size = tensor_columns(args->angles);
    const struct rope a = {
        .angles = (const float *)args->angles->data,
        .query_angles = args->query_angles ? (const float *)args->query_angles->data : NULL,
        .positions = args->positions,
        .rows = tensor_rows(args->inout),
        .columns = tensor_columns(args->inout),
        .sequence_length = args->sequence_length,
        .heads = args->heads,
        .query_heads = args->query_angles ? args->query_heads : 0,
        .head_dim = args->head_dim ? args->head_dim : size,
        .half = size / 2,
        .sign = args->inverse ? -1.0f : 1.0f,
    };
    assert(size % 2 == 0 && size <= a.head_dim && a.heads * a.head_dim <= a.columns &&
           args->angles->dtype == DTYPE_F32);
    if (a.rows == 0) return;
    STORAGE_SWITCH(args->inout->dtype, T, (launch<T>(be, args, &a)));
    cuda_launched(be, "rope");
}
