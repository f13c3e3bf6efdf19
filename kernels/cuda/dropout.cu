/* Dropout of the rows of a matrix, with draws that depend on the row of the run and the column. */
#include "kernels/dropout.h"

#include "kernels/cuda/map.h"

/* Drops elements of a matrix. ACCUMULATES: of the second input, and adds the others. */
template <bool ACCUMULATES> struct dropout_map {
    enum { CHUNKS = 2, TRACKS = !ACCUMULATES, IN_PLACE = true };
    struct rounding_key key;
    uint32_t threshold;
    float scale;
    int64_t columns;
    const struct step_inputs *inputs;
    int64_t first_row; /* of inputs */
};

template <bool ACCUMULATES>
static __device__ __forceinline__ void begin(struct dropout_map<ACCUMULATES> &d) {
    d.first_row = d.inputs->first_row;
}

/* The neighbours are of one row or several. */
template <bool ACCUMULATES, int N>
static __device__ __forceinline__ void apply(const struct dropout_map<ACCUMULATES> &d,
                                             float (&values)[N], const float (&added)[N],
                                             int64_t at) {
    int64_t row = d.first_row + at / d.columns, column = at % d.columns;
    struct rounding_key key = rounding_row_key(d.key, row);
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (column == d.columns) {
            column = 0;
            key = rounding_row_key(d.key, ++row);
        }
        float value = ACCUMULATES ? added[k] : values[k];
        value = dropout_draw(key, column++) < d.threshold ? 0.0f : __fmul_rn(d.scale, value);
        values[k] = ACCUMULATES ? __fadd_rn(values[k], value) : value;
    }
}

/* Scales elements of a matrix, of which none is dropped. */
struct scale_map {
    enum { CHUNKS = 2, TRACKS = true, IN_PLACE = true };
    float scale;
};

template <int N>
static __device__ __forceinline__ void apply(const struct scale_map &map, float (&values)[N],
                                             const float (&)[N], int64_t) {
    for (int k = 0; k < N; k++) values[k] = __fmul_rn(map.scale, values[k]);
}

template <bool ACCUMULATES>
static struct dropout_map<ACCUMULATES> dropout_of(const struct dropout_args *args) {
    return {args->key,
            dropout_threshold(args->probability),
            dropout_scale(args->scale, args->probability),
            tensor_columns(args->in),
            args->inputs,
            0};
}

void cuda_dropout(struct backend *be, const struct dropout_args *args) {
    const struct tensor *out = args->out, *in = args->in;
    assert(tensor_count(in) == tensor_count(out) && !(args->accumulate && args->track_amax));
    if (tensor_count(out) == 0) return;
    if (args->accumulate)
        STORAGE_SWITCH(out->dtype, Out,
                       STORAGE_SWITCH(in->dtype, In,
                                      (map_arrays<Out, Out, In>(be, dropout_of<true>(args), out,
                                                                out, in->data, NULL))));
    else if (args->probability == 0)
        map_tensor(be, scale_map{dropout_scale(args->scale, 0)}, out, in, args->track_amax);
    else map_tensor(be, dropout_of<false>(args), out, in, args->track_amax);
    cuda_launched(be, "dropout");
}
