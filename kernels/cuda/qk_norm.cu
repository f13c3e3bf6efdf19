/* RMS norm of the heads of q and k, and their rotation, in place. Bytes per element: forward read,
 * written and its copy written; backward the gradient read and written, and the copy read. The
 * limit is memory bandwidth.
 *
 * A team of lanes, a power of two, processes a head, and a lane a pack of columns of its lower half
 * and those half a head above, so that sums over a head and rotated pairs stay in registers. In the
 * backward kernel a block processes a group of rows, first all heads of queries, then those of
 * keys, and the gradients of a weight stay in registers until its heads end. */
#include "kernels/cuda/partials.h"

enum {
    THREADS = 256,
    BACKWARD_BLOCKS = 3,        /* on a multiprocessor: few loads of a warp are in flight at once */
    HEAD_MAX = 2 * WARP * PACK, /* two packs for each lane of a warp */
    GROUPS_MAX = 384,           /* as many as run at once on 128 multiprocessors */
    GROUP_ROWS_MIN = 16,
};

struct qk_norm {
    const float *q_weight, *k_weight; /* [D] */
    const float *angles;              /* [T, D], or NULL */
    const int32_t *positions;         /* [N], or NULL */
    float *partials;                  /* backward: [groups, 2, D] */
    int64_t columns;
    int rows, group_rows, sequence_length;  /* rows times heads fit an int: index arithmetic in 64
                                               bits would take longer than the memory */
    int heads, all_heads, size, half, team; /* half: columns of the lower half */
    float weight_offset, per_column, epsilon;
};

/* Sum over a team, in each of its lanes. */
static __device__ __forceinline__ float team_sum(float value, int team) {
    for (int offset = team / 2; offset > 0; offset /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

/* Columns of a head that a lane processes: from column on, and from half + column on. */
struct lane_columns {
    int row, head, column, low, high; /* low, high: number of columns; 0: none */
};

/* Returns the columns in a head of a row; none of rows beyond the last. Lanes without work do not
 * return early, because their warp sums together. */
static __device__ __forceinline__ struct lane_columns find_columns(const struct qk_norm &a, int row,
                                                                   int head, int rows) {
    struct lane_columns p = {row, head, (int)threadIdx.x % a.team * PACK, 0, 0};
    if (row >= rows) return p;
    p.low = max(min(a.half - p.column, (int)PACK), 0);
    p.high = max(min(a.size - a.half - p.column, (int)PACK), 0);
    return p;
}

/* Offset of a head in tensors of such rows. */
static __device__ __forceinline__ int64_t head_at(const struct lane_columns &p, int64_t columns,
                                                  int size) {
    return p.row * columns + p.head * size;
}

template <bool PACKED, typename T>
static __device__ __forceinline__ void load_part(float *values, const T *from, int count) {
    for (int i = 0; i < PACK; i++) values[i] = 0;
    if (count > 0) load_columns<PACKED>(values, from, count);
}

/* Loads the lane's columns of a head that starts at `from`; zeros for missing columns. */
template <bool PACKED, typename T>
static __device__ __forceinline__ void load_head(float x[2][PACK], const T *from,
                                                 const struct lane_columns &p, int half) {
    load_part<PACKED>(x[0], from + p.column, p.low);
    load_part<PACKED>(x[1], from + half + p.column, p.high);
}

template <bool PACKED, typename T>
static __device__ __forceinline__ void store_head(T *to, const float x[2][PACK],
                                                  const struct lane_columns &p, int half) {
    if (p.low > 0) store_columns<PACKED>(to + p.column, x[0], p.low);
    if (p.high > 0) store_columns<PACKED>(to + half + p.column, x[1], p.high);
}

/* Loads the lane's columns of the head's weight, plus weight_offset. */
template <bool PACKED>
static __device__ __forceinline__ void
load_weight(float weight[2][PACK], const struct lane_columns &p, const struct qk_norm &a) {
    load_head<PACKED>(weight, p.head < a.heads ? a.q_weight : a.k_weight, p, a.half);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < PACK; i++) weight[part][i] += a.weight_offset;
}

static __device__ __forceinline__ float head_rstd(const float x[2][PACK], const struct qk_norm &a) {
    float squares = 0;
    for (int i = 0; i < PACK; i++) squares += x[0][i] * x[0][i] + x[1][i] * x[1][i];
    return 1.0f / sqrtf(team_sum(squares, a.team) * a.per_column + a.epsilon);
}

/* Rotates the lane's pairs, by the opposite angles if sign is -1; see rope. */
template <bool PACKED>
static __device__ __forceinline__ void rotate(float x[2][PACK], const struct lane_columns &p,
                                              const struct qk_norm &a, float sign) {
    float rotation[2][PACK]; /* cosines, sines */
    if (!a.angles) return;
    int position = a.positions ? a.positions[p.row] : p.row % a.sequence_length;
    load_head<PACKED>(rotation, a.angles + (int64_t)position * a.size, p, a.half);
    for (int i = 0; i < PACK; i++) {
        float low = x[0][i], sine = sign * rotation[1][i];
        x[0][i] = low * rotation[0][i] - x[1][i] * sine;
        x[1][i] = x[1][i] * rotation[0][i] + low * sine;
    }
}

template <bool PACKED, typename T>
static __global__ void __launch_bounds__(THREADS)
    forward_kernel(T *inout, T *raw, struct qk_norm a) {
    int index = (int)(blockIdx.x * (THREADS / a.team) + threadIdx.x / a.team);
    struct lane_columns p = find_columns(a, index / a.all_heads, index % a.all_heads, a.rows);
    T *out = inout + head_at(p, a.columns, a.size);
    float x[2][PACK], weight[2][PACK];
    load_head<PACKED>(x, out, p, a.half);
    load_weight<PACKED>(weight, p, a);
    float rstd = head_rstd(x, a);
    store_head<PACKED>(raw + (int64_t)index * a.size, x, p, a.half);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < PACK; i++) x[part][i] *= rstd * weight[part][i];
    rotate<PACKED>(x, p, a, 1);
    store_head<PACKED>(out, x, p, a.half);
}

/* With d = dout * (weight + weight_offset) and h = in * rstd, the gradient is rstd * (d - h *
 * mean(d * h)); sums += dout * h. */
template <bool PACKED, typename T>
static __device__ __forceinline__ void head_backward(float sums[2][PACK], T *dinout, const T *raw,
                                                     const struct lane_columns &p,
                                                     const struct qk_norm &a) {
    float d[2][PACK], h[2][PACK], weight[2][PACK], sum = 0;
    load_head<PACKED>(d, dinout, p, a.half);
    load_head<PACKED>(h, raw, p, a.half);
    rotate<PACKED>(d, p, a, -1);
    float rstd = head_rstd(h, a);
    load_weight<PACKED>(weight, p, a);
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < PACK; i++) {
            h[part][i] *= rstd;
            sums[part][i] += d[part][i] * h[part][i];
            d[part][i] *= weight[part][i];
            sum += d[part][i] * h[part][i];
        }
    float mean = team_sum(sum, a.team) * a.per_column;
    for (int part = 0; part < 2; part++)
        for (int i = 0; i < PACK; i++) d[part][i] = rstd * (d[part][i] - h[part][i] * mean);
    store_head<PACKED>(dinout, d, p, a.half);
}

/* partial [count] = the teams' sums of dweight, added team after team. */
static __device__ __forceinline__ void write_partial(float *partial, const float *dweight,
                                                     int count, const struct qk_norm &a) {
    __shared__ float shared[THREADS * PACK];
    for (int i = 0; i < PACK; i++) shared[threadIdx.x * PACK + i] = dweight[i];
    __syncthreads();
    for (int column = (int)threadIdx.x; column < count; column += THREADS) {
        float sum = 0;
        for (int team = 0; team < THREADS / a.team; team++)
            sum += shared[team * a.team * PACK + column];
        partial[column] = sum;
    }
    __syncthreads();
}

/* The heads from `begin` on, so many in each row of the block's group; partial: of their weight. */
template <bool PACKED, typename T>
static __device__ __forceinline__ void heads_backward(float *partial, T *dinout, const T *raw,
                                                      int begin, int heads,
                                                      const struct qk_norm &a) {
    int first = (int)blockIdx.x * a.group_rows, teams = THREADS / a.team;
    int last = first + a.group_rows < a.rows ? first + a.group_rows : a.rows;
    float sums[2][PACK] = {{0}};
    for (int done = 0; done < (last - first) * heads; done += teams) {
        int at = done + (int)threadIdx.x / a.team;
        int row = first + at / heads, head = begin + at % heads;
        struct lane_columns p = find_columns(a, row, head, last);
        head_backward<PACKED>(sums, dinout + head_at(p, a.columns, a.size),
                              raw + head_at(p, (int64_t)a.all_heads * a.size, a.size), p, a);
    }
    write_partial(partial, sums[0], a.half, a);
    write_partial(partial + a.half, sums[1], a.size - a.half, a);
}

template <bool PACKED, typename T>
static __global__ void __launch_bounds__(THREADS, PACKED ? BACKWARD_BLOCKS : 1)
    backward_kernel(T *dinout, const T *raw, struct qk_norm a) {
    float *partial = a.partials + blockIdx.x * 2 * (int64_t)a.size;
    heads_backward<PACKED>(partial, dinout, raw, 0, a.heads, a);
    heads_backward<PACKED>(partial + a.size, dinout, raw, a.heads, a.all_heads - a.heads, a);
}

/* ---- on the host */

/* Number of rows in a group; depends on the number of rows only. */
static int rows_per_group(int64_t rows) {
    int group_rows = (int)blocks_of(rows, GROUPS_MAX);
    return group_rows < GROUP_ROWS_MIN ? (int)GROUP_ROWS_MIN : group_rows;
}

static int64_t groups_of(int64_t rows) {
    return blocks_of(rows, rows_per_group(rows));
}

/* Returns the arguments of both kernels; raw may be read-only. */
static struct qk_norm prepare(const struct tensor *inout, const struct tensor *raw,
                              const struct tensor *q_weight, const struct tensor *k_weight,
                              const struct tensor *angles, int heads, int kv_heads) {
    int size = (int)tensor_columns(q_weight), half = (size + 1) / 2, team = 1;
    while (team * PACK < half) team *= 2;
    assert(!angles || (size % 2 == 0 && tensor_columns(angles) == size));
    assert(size <= HEAD_MAX && raw->dtype == inout->dtype);
    assert(q_weight->dtype == DTYPE_F32 && k_weight->dtype == DTYPE_F32);
    assert(tensor_columns(raw) == (heads + kv_heads) * size);
    assert(tensor_columns(raw) <= tensor_columns(inout));
    assert((tensor_rows(inout) + GROUP_ROWS_MIN) * (heads + kv_heads) <= INT32_MAX - THREADS);
    return {
        .q_weight = (const float *)q_weight->data,
        .k_weight = (const float *)k_weight->data,
        .angles = angles ? (const float *)angles->data : NULL,
        .positions = NULL,
        .partials = NULL,
        .columns = tensor_columns(inout),
        .rows = (int)tensor_rows(inout),
        .group_rows = rows_per_group(tensor_rows(inout)),
        .sequence_length = 0,
        .heads = heads,
        .all_heads = heads + kv_heads,
        .size = size,
        .half = half,
        .team = team,
        .weight_offset = 0,
        .per_column = 1.0f / (float)size,
        .epsilon = 0,
    };
}

static bool is_packed(const struct tensor *inout, const struct tensor *raw,
                      const struct tensor *q_weight, const struct tensor *k_weight,
                      const struct tensor *angles) {
    return rows_are_packed(inout) && rows_are_packed(raw) && rows_are_packed(q_weight) &&
           rows_are_packed(k_weight) && (!angles || rows_are_packed(angles)) &&
           tensor_columns(q_weight) % (2 * PACK) == 0;
}

void cuda_qk_norm_forward(struct backend *be, const struct qk_norm_forward_args *args) {
    struct qk_norm a = prepare(args->inout, args->raw, args->q_weight, args->k_weight, args->angles,
                               args->heads, args->kv_heads);
    bool packed = is_packed(args->inout, args->raw, args->q_weight, args->k_weight, args->angles);
    a.positions = args->positions;
    a.sequence_length = (int)args->sequence_length;
    a.weight_offset = args->weight_offset;
    a.epsilon = args->epsilon;
    if (a.rows == 0) return;
    unsigned blocks = (unsigned)blocks_of((int64_t)a.rows * a.all_heads, THREADS / a.team);
    STORAGE_SWITCH(args->inout->dtype, T,
                   LAUNCH((packed ? forward_kernel<true, T> : forward_kernel<false, T>), blocks,
                          THREADS, 0, cuda_state(be)->compute, (T *)args->inout->data,
                          (T *)args->raw->data, a));
    cuda_launched(be, "qk_norm_forward");
}

size_t cuda_qk_norm_backward_scratch(struct backend *be, const struct qk_norm_backward_args *args) {
    (void)be;
    int64_t floats = groups_of(tensor_rows(args->dinout)) * 2 * tensor_columns(args->q_weight);
    return (size_t)floats * sizeof(float);
}

void cuda_qk_norm_backward(struct backend *be, const struct qk_norm_backward_args *args) {
    struct qk_norm a = prepare(args->dinout, args->raw, args->q_weight, args->k_weight,
                               args->angles, args->heads, args->kv_heads);
    bool packed = is_packed(args->dinout, args->raw, args->q_weight, args->k_weight, args->angles);
    assert(!args->dk_weight == !args->kv_heads);
    if (a.rows == 0) return;
    unsigned groups = (unsigned)groups_of(a.rows);
    a.sequence_length = (int)args->sequence_length;
    a.weight_offset = args->weight_offset;
    a.epsilon = args->epsilon;
    a.partials = (float *)backend_workspace(be, cuda_qk_norm_backward_scratch(be, args));
    STORAGE_SWITCH(args->dinout->dtype, T,
                   LAUNCH((packed ? backward_kernel<true, T> : backward_kernel<false, T>), groups,
                          THREADS, 0, cuda_state(be)->compute, (T *)args->dinout->data,
                          (const T *)args->raw->data, a));
    struct sums sums = sums_of(args->dq_weight);
    sums_add(&sums, args->dk_weight);
    sums.count = 2; /* without keys the second goes nowhere */
    add_partials(be, &sums, a.partials, groups);
    cuda_launched(be, "qk_norm_backward");
}
