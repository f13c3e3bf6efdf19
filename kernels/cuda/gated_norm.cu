/* RMS norm of heads, with a gate. Bytes per element: forward two read and one written; backward
 * three read and two written. The limit is memory bandwidth.
 *
 * A team of lanes, a power of two, processes a head, and a lane a pack of its columns. In the
 * backward kernel a block processes a group of rows, and its teams' gradients of the weight stay in
 * registers until the end. */
#include "kernels/cuda/partials.h"
#include "kernels/cuda/ptx.h"

enum { THREADS = 256, HEAD_MAX = WARP * PACK, GROUPS_MAX = 384, GROUP_HEADS_MIN = 128 };

struct gated_norm {
    struct array in, gate, out, dgate; /* out: din in the backward pass */
    struct array dout;
    const float *weight;        /* [D] */
    float *partials;            /* backward: [groups, D] */
    int64_t count, group_heads; /* heads of all rows; of a block in the backward pass */
    int64_t gate_stride, gate_column;
    int heads, size, team; /* of a row; D; lanes of a head */
    float epsilon;
};

static __device__ __forceinline__ float team_sum(float value, int team) {
    for (int offset = team / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* A lane's columns of a head: offsets in rows of `in` and of the gate. */
struct lane_columns {
    int64_t at, gate_at;
    int column, count; /* 0 or less: none */
};

static __device__ __forceinline__ struct lane_columns find_columns(const struct gated_norm &a,
                                                                   int64_t head, int64_t end) {
    const int column = (int)threadIdx.x % a.team * PACK;
    const int64_t row = head / a.heads;
    return {head * a.size + column,
            row * a.gate_stride + a.gate_column + (head - row * a.heads) * a.size + column, column,
            head < end ? columns_from(column, a.size) : 0};
}

/* Loads in * rstd, the gate and the weight; returns rstd. */
static __device__ __forceinline__ float load_head(float h[PACK], float gate[PACK],
                                                  float weight[PACK], const struct gated_norm &a,
                                                  const struct lane_columns &p) {
    float squares = 0;
    load_array(h, a.in, p.at, p.count);
    load_array(gate, a.gate, p.gate_at, p.count);
    load_some(weight, a.weight + p.column, p.count);
    for (int i = 0; i < PACK; i++) squares += h[i] * h[i];
    const float rstd = 1.0f / sqrtf(team_sum(squares, a.team) / (float)a.size + a.epsilon);
    for (int i = 0; i < PACK; i++) h[i] *= rstd;
    return rstd;
}

static __device__ __forceinline__ float logistic(float x) {
    return reciprocal_approx(1.0f + exp2_approx(-LOG2_OF_E * x));
}

static __global__ void __launch_bounds__(THREADS) forward_kernel(struct gated_norm a) {
    const int64_t head = (int64_t)blockIdx.x * (THREADS / a.team) + (int)threadIdx.x / a.team;
    const struct lane_columns p = find_columns(a, head, a.count);
    float h[PACK], gate[PACK], weight[PACK];
    load_head(h, gate, weight, a, p);
    for (int i = 0; i < PACK; i++) h[i] *= weight[i] * gate[i] * logistic(gate[i]);
    store_array(a.out, p.at, h, p.count);
}

/* With h = in * rstd, s = silu(gate) and d = dout * weight * s, the gradient is rstd * (d - h *
 * mean(d * h)); dweight is the sum of dout * h * s. */
static __global__ void __launch_bounds__(THREADS) backward_kernel(struct gated_norm a) {
    __shared__ float shared[THREADS * PACK];
    const int64_t first = blockIdx.x * a.group_heads, last = min(first + a.group_heads, a.count);
    const int teams = THREADS / a.team;
    float sums[PACK] = {0};
    for (int64_t begin = first; begin < last; begin += teams) {
        const struct lane_columns p = find_columns(a, begin + (int)threadIdx.x / a.team, last);
        float h[PACK], gate[PACK], weight[PACK], d[PACK], sum = 0;
        const float rstd = load_head(h, gate, weight, a, p);
        load_array(d, a.dout, p.at, p.count);
        for (int i = 0; i < PACK; i++) {
            const float l = logistic(gate[i]), s = gate[i] * l, slope = l + s * (1.0f - l);
            sums[i] += d[i] * h[i] * s;
            gate[i] = d[i] * h[i] * weight[i] * slope;
            d[i] *= weight[i] * s;
            sum += d[i] * h[i];
        }
        const float mean = team_sum(sum, a.team) / (float)a.size;
        for (int i = 0; i < PACK; i++) d[i] = rstd * (d[i] - h[i] * mean);
        store_array(a.out, p.at, d, p.count);
        store_array(a.dgate, p.gate_at, gate, p.count);
    }
    for (int i = 0; i < PACK; i++) shared[threadIdx.x * PACK + i] = sums[i];
    __syncthreads();
    for (int column = (int)threadIdx.x; column < a.size; column += THREADS) {
        float sum = 0;
        for (int team = 0; team < teams; team++) sum += shared[team * a.team * PACK + column];
        a.partials[blockIdx.x * (int64_t)a.size + column] = sum;
    }
}

/* ---- on the host */

/* Heads of a block of the backward pass, a function of their number only. */
static int64_t heads_per_group(int64_t count) {
    const int64_t heads = blocks_of(count, GROUPS_MAX);
    return heads < GROUP_HEADS_MIN ? (int64_t)GROUP_HEADS_MIN : heads;
}

/* A tensor whose heads begin at a column. */
static struct array heads_of(const struct tensor *tensor, int64_t column, int size) {
    struct array array = array_of(tensor);
    array.packed = array.packed && column % PACK == 0 && size % PACK == 0;
    return array;
}

static struct gated_norm prepare(const struct tensor *out, const struct tensor *in,
                                 const struct tensor *gate, const struct tensor *weight,
                                 int64_t gate_column, float epsilon) {
    struct gated_norm a;
    memset(&a, 0, sizeof a);
    a.size = (int)tensor_columns(weight), a.team = 1;
    while (a.team * PACK < a.size) a.team *= 2;
    assert(a.size <= HEAD_MAX && weight->dtype == DTYPE_F32);
    assert(tensor_columns(in) % a.size == 0 && tensor_count(out) == tensor_count(in));
    a.in = heads_of(in, 0, a.size), a.out = heads_of(out, 0, a.size);
    a.gate = heads_of(gate, gate_column, a.size);
    a.weight = (const float *)weight->data;
    a.count = tensor_count(in) / a.size, a.group_heads = heads_per_group(a.count);
    a.gate_stride = tensor_columns(gate), a.gate_column = gate_column;
    a.heads = (int)tensor_columns(in) / a.size, a.epsilon = epsilon;
    return a;
}

void cuda_gated_norm_forward(struct backend *be, const struct gated_norm_forward_args *args) {
    const struct gated_norm a =
        prepare(args->out, args->in, args->gate, args->weight, args->gate_column, args->epsilon);
    if (a.count == 0) return;
    LAUNCH(forward_kernel, (unsigned)blocks_of(a.count, THREADS / a.team), THREADS, 0,
           cuda_state(be)->compute, a);
    cuda_launched(be, "gated_norm_forward");
}

static int64_t groups_of(const struct gated_norm_backward_args *args) {
    const int64_t count = tensor_count(args->in) / tensor_columns(args->weight);
    return blocks_of(count, heads_per_group(count));
}

size_t cuda_gated_norm_backward_scratch(struct backend *be,
                                        const struct gated_norm_backward_args *args) {
    (void)be;
    return (size_t)(groups_of(args) * tensor_columns(args->weight)) * sizeof(float);
}

void cuda_gated_norm_backward(struct backend *be, const struct gated_norm_backward_args *args) {
    struct gated_norm a =
        prepare(args->din, args->in, args->gate, args->weight, args->gate_column, args->epsilon);
    a.dout = heads_of(args->dout, 0, a.size);
    a.dgate = heads_of(args->dgate, args->gate_column, a.size);
    a.partials = (float *)backend_workspace(be, cuda_gated_norm_backward_scratch(be, args));
    assert(tensor_columns(args->dgate) == a.gate_stride);
    if (a.count == 0) return;
    LAUNCH(backward_kernel, (unsigned)groups_of(args), THREADS, 0, cuda_state(be)->compute, a);
    struct sums sums = sums_of(args->dweight);
    add_partials(be, &sums, a.partials, groups_of(args));
    cuda_launched(be, "gated_norm_backward");
}
