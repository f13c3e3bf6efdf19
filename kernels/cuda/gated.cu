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

/* Forward: out = f(gate) * up. BACKWARD: gate and up become their gradients, where silu'(x) =
 * s + x s (1 - s), and s is the logistic function. */
template <enum gate_function F, bool BACKWARD>
static __device__ __forceinline__ void gate_values(float gate[PACK], float up[PACK],
                                                   const float d[PACK]) {
    for (int i = 0; i < PACK; i++) {
        float x = gate[i];
        if (!BACKWARD && F == GATE_GELU) gate[i] = gelu(x) * up[i];
        else if (!BACKWARD) gate[i] = (F == GATE_SILU ? x : 1.0f) * (logistic(x) * up[i]);
        else if (F == GATE_GELU) {
            gate[i] = d[i] * up[i] * gelu_derivative(x);
            up[i] = d[i] * gelu(x);
        } else {
            float s = logistic(x);
            gate[i] = d[i] * up[i] * (F == GATE_SILU ? s + x * s * (1.0f - s) : s * (1.0f - s));
            up[i] = F == GATE_SILU ? d[i] * x * s : d[i] * s;
        }
    }
}

/* BACKWARD: out and dup have the gradients of gate and up. They may be gate and up, and dup may be
 * dout: a thread reads its inputs before it writes there. */
template <bool PACKED, enum gate_function F, bool BACKWARD, typename Out, typename Dout,
          typename In>
static __global__ void __launch_bounds__(THREADS)
    gated_kernel(Out *out, Out *dup, const Dout *dout, const In *gates, const In *ups, int64_t rows,
                 int64_t columns, int64_t stride, int64_t up_stride, struct amax *track_amax) {
    int64_t row, column;
    int count;
    float gate[PACK], up[PACK], d[PACK];
    struct magnitudes own = {0, 0};
    if (find_pack(&row, &column, &count, rows, columns)) {
        int64_t at = row * columns + column, at_gate = row * stride + column;
        int64_t at_up = row * up_stride + column;
        load_columns<PACKED>(gate, gates + at_gate, count);
        load_columns<PACKED>(up, ups + at_up, count);
        if constexpr (BACKWARD) load_columns<PACKED>(d, dout + at, count);
        gate_values<F, BACKWARD>(gate, up, d);
        store_columns<PACKED>(out + (BACKWARD ? at_gate : at), gate, count);
        if (BACKWARD) store_columns<PACKED>(dup + at_up, up, count);
        if (track_amax) track_stored<Out, PACK>(&own, gate);
        if (BACKWARD && track_amax) track_stored<Out, PACK>(&own, up);
    }
    if (track_amax) merge_amax(track_amax, own);
}

/* Tensors of a pass; dup and dout of the backward pass, up optional. */
struct gated {
    const struct tensor *out, *dup, *dout, *gate_up, *up;
    int64_t gate_column;
    struct amax *track_amax;
};

template <enum gate_function F, bool BACKWARD, typename Out, typename Dout, typename In>
static void launch(struct backend *be, const struct gated *a) {
    const int64_t rows = tensor_rows(a->gate_up), stride = tensor_columns(a->gate_up);
    const int64_t columns = a->up ? tensor_columns(a->up) : stride / 2;
    const In *gates = (const In *)a->gate_up->data + a->gate_column;
    Out *out = (Out *)a->out->data + (BACKWARD ? a->gate_column : 0);
    /* Packed rows have packed halves. */
    bool packed = columns % PACK == 0 && a->gate_column % PACK == 0 && rows_are_packed(a->out) &&
                  rows_are_packed(a->gate_up) && (!a->dout || rows_are_packed(a->dout)) &&
                  (!a->up || rows_are_packed(a->up)) && (!a->dup || rows_are_packed(a->dup));
    if (rows * columns == 0) return;
    LAUNCH((packed ? gated_kernel<true, F, BACKWARD, Out, Dout, In>
                   : gated_kernel<false, F, BACKWARD, Out, Dout, In>),
           (unsigned)blocks_of(rows * blocks_of(columns, PACK), THREADS), THREADS, 0,
           cuda_state(be)->compute, out, a->dup ? (Out *)a->dup->data : out + columns,
           a->dout ? (const Dout *)a->dout->data : NULL, gates,
           a->up ? (const In *)a->up->data : gates + columns, rows, columns, stride,
           a->up ? columns : stride, a->track_amax);
}

template <bool BACKWARD, typename Out, typename Dout, typename In>
static void gated(struct backend *be, enum gate_function gate, const struct gated *a) {
    const int64_t columns = tensor_columns(BACKWARD ? a->dout : a->out);
    assert(a->up ? tensor_columns(a->up) == columns &&
                       a->gate_column + columns <= tensor_columns(a->gate_up)
                 : tensor_columns(a->gate_up) == 2 * columns);
    assert((!a->up || a->up->dtype == a->gate_up->dtype) &&
           (!a->dup || a->dup->dtype == a->out->dtype));
    if (gate == GATE_GELU) launch<GATE_GELU, BACKWARD, Out, Dout, In>(be, a);
    else if (gate == GATE_SILU) launch<GATE_SILU, BACKWARD, Out, Dout, In>(be, a);
    else launch<GATE_SIGMOID, BACKWARD, Out, Dout, In>(be, a);
}

void cuda_gated_forward(struct backend *be, const struct gated_forward_args *args) {
    const struct tensor *out = args->out, *in = args->gate_up;
    const struct gated all = {out, NULL, NULL, in, args->up, args->gate_column, args->track_amax};
    assert(tensor_rows(in) == tensor_rows(out));
    STORAGE_SWITCH(
        out->dtype, Out,
        STORAGE_SWITCH(in->dtype, In, (gated<false, Out, float, In>(be, args->gate, &all))));
    cuda_launched(be, "gated_forward");
}

void cuda_gated_backward(struct backend *be, const struct gated_backward_args *args) {
    const struct tensor *out = args->dgate_up, *dout = args->dout, *in = args->gate_up;
    const struct gated all = {
        out, args->dup, dout, in, args->up, args->gate_column, args->track_amax};
    assert(tensor_count(in) == tensor_count(out) && !args->up == !args->dup);
    STORAGE_SWITCH(
        out->dtype, Out,
        STORAGE_SWITCH(
            dout->dtype, Dout,
            STORAGE_SWITCH(in->dtype, In, (gated<true, Out, Dout, In>(be, args->gate, &all)))));
    cuda_launched(be, "gated_backward");
}
