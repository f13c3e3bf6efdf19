/* Gated linear units. Bytes per element of out: gate and up read, out written; backward gate, up
 * and dout read, two gradients written. The limit is memory bandwidth.
 *
 * A thread processes a pack of columns of one row, and reads its gate and up. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/amax.h"
#include "kernels/cuda/gelu.h"

enum { THREADS = 256 };

/* Outside fp32's range the exponential is inf and the result 0. */
static __device__ __forceinline__ float logistic(float x) {
    return reciprocal_approx(1.0f + exp2_approx(-LOG2_OF_E * x));
}

/* Finds this thread's row, its pack's first column and the number of columns. Returns false if
 * there is no such row. */
static __device__ __forceinline__ bool find_pack(int64_t *row, int64_t *column, int *count,
                                                 int64_t rows, int64_t columns) {
    int64_t packs = (columns + PACK - 1) / PACK;
    int64_t index = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    *row = index / packs;
    *column = index % packs * PACK;
    *count = columns_from(*column, columns);
    return *row < rows;
}

template <bool PACKED, bool GELU, typename Out, typename In>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(Out *out, const In *__restrict__ gate_up, int64_t rows, int64_t columns,
                   struct amax *track_amax) {
    int64_t row, column;
    int count;
    float gate[PACK], up[PACK];
    struct magnitudes own = {0, 0};
    if (find_pack(&row, &column, &count, rows, columns)) {
        const In *from = gate_up + row * 2 * columns + column;
        load_columns<PACKED>(gate, from, count);
        load_columns<PACKED>(up, from + columns, count);
        for (int i = 0; i < PACK; i++) {
            if (GELU) gate[i] = gelu(gate[i]) * up[i];
            else gate[i] *= logistic(gate[i]) * up[i];
        }
        store_columns<PACKED>(out + row * columns + column, gate, count);
        if (track_amax) track_stored<Out, PACK>(&own, gate);
    }
    if (track_amax) merge_amax(track_amax, own);
}

/* silu'(x) = s + x s (1 - s), where s is the logistic function. dgate_up may be gate_up: a thread
 * reads its inputs before it writes there. */
template <bool PACKED, bool GELU, typename Din, typename Dout, typename In>
static __global__ void __launch_bounds__(THREADS)
    backward_kernel(Din *dgate_up, const Dout *__restrict__ dout, const In *gate_up, int64_t rows,
                    int64_t columns, struct amax *track_amax) {
    int64_t row, column;
    int count;
    float gate[PACK], up[PACK], d[PACK];
    struct magnitudes own = {0, 0};
    if (find_pack(&row, &column, &count, rows, columns)) {
        int64_t at = row * 2 * columns + column;
        load_columns<PACKED>(gate, gate_up + at, count);
        load_columns<PACKED>(up, gate_up + at + columns, count);
        load_columns<PACKED>(d, dout + row * columns + column, count);
        for (int i = 0; i < PACK; i++) {
            float s = logistic(gate[i]), x = gate[i];
            if (GELU) {
                gate[i] = d[i] * up[i] * gelu_derivative(x);
                up[i] = d[i] * gelu(x);
            } else {
                gate[i] = d[i] * up[i] * (s + x * s * (1.0f - s));
                up[i] = d[i] * x * s;
            }
        }
        store_columns<PACKED>(dgate_up + at, gate, count);
        store_columns<PACKED>(dgate_up + at + columns, up, count);
        if (track_amax) track_stored<Din, PACK>(&own, gate);
        if (track_amax) track_stored<Din, PACK>(&own, up);
    }
    if (track_amax) merge_amax(track_amax, own);
}

static unsigned blocks_for(int64_t rows, int64_t columns) {
    return (unsigned)blocks_of(rows * blocks_of(columns, PACK), THREADS);
}

template <bool GELU, typename Out, typename In>
static void forward(struct backend *be, const struct gated_forward_args *a) {
    int64_t rows = tensor_rows(a->out), columns = tensor_columns(a->out);
    bool packed = rows_are_packed(a->out) && rows_are_packed(a->gate_up); /* so are its halves */
    LAUNCH((packed ? forward_kernel<true, GELU, Out, In> : forward_kernel<false, GELU, Out, In>),
           blocks_for(rows, columns), THREADS, 0, cuda_state(be)->compute, (Out *)a->out->data,
           (const In *)a->gate_up->data, rows, columns, a->track_amax);
}

void cuda_gated_forward(struct backend *be, const struct gated_forward_args *args) {
    assert(tensor_columns(args->gate_up) == 2 * tensor_columns(args->out));
    assert(tensor_rows(args->gate_up) == tensor_rows(args->out));
    if (tensor_count(args->out) == 0) return;
    STORAGE_SWITCH(args->out->dtype, Out, STORAGE_SWITCH(args->gate_up->dtype, In, {
                       if (args->gate == GATE_GELU) forward<true, Out, In>(be, args);
                       else forward<false, Out, In>(be, args);
                   }));
    cuda_launched(be, "gated_forward");
}

template <bool GELU, typename Din, typename Dout, typename In>
static void backward(struct backend *be, const struct gated_backward_args *a) {
    int64_t rows = tensor_rows(a->dout), columns = tensor_columns(a->dout);
    bool packed =
        rows_are_packed(a->dout) && rows_are_packed(a->gate_up) && rows_are_packed(a->dgate_up);
    LAUNCH((packed ? backward_kernel<true, GELU, Din, Dout, In>
                   : backward_kernel<false, GELU, Din, Dout, In>),
           blocks_for(rows, columns), THREADS, 0, cuda_state(be)->compute, (Din *)a->dgate_up->data,
           (const Dout *)a->dout->data, (const In *)a->gate_up->data, rows, columns, a->track_amax);
}

void cuda_gated_backward(struct backend *be, const struct gated_backward_args *args) {
    assert(tensor_columns(args->gate_up) == 2 * tensor_columns(args->dout));
    assert(tensor_count(args->gate_up) == tensor_count(args->dgate_up));
    if (tensor_count(args->dout) == 0) return;
    STORAGE_SWITCH(
        args->dgate_up->dtype, Din,
        STORAGE_SWITCH(args->dout->dtype, Dout, STORAGE_SWITCH(args->gate_up->dtype, In, {
                           if (args->gate == GATE_GELU) backward<true, Din, Dout, In>(be, args);
                           else backward<false, Din, Dout, In>(be, args);
                       })));
    cuda_launched(be, "gated_backward");
}
