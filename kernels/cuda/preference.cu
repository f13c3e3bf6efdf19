/* Losses of pairs (kernels/preference_loss.h) in one block, one warp to a pair: a batch has few
 * pairs, and one fixed order of addition gives the same sums every time. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/reduce.h"
#include "kernels/preference_loss.h"

enum { PREFERENCE_THREADS = 512, PREFERENCE_WARPS = PREFERENCE_THREADS / WARP };

/* Sums -log p over rows [begin, end), and counts their targets; every lane gets both. */
static __device__ void sum_rows(const struct preference_args *args, int begin, int end, float *sum,
                                float *targets) {
    double total = 0;
    float counted = 0;
    for (int row = begin + (int)threadIdx.x % WARP; row < end; row += WARP) {
        if (args->targets[row] < 0) continue;
        total += (double)args->losses[row];
        counted += 1;
    }
    *sum = (float)warp_sum(total);
    *targets = warp_sum(counted);
}

static __device__ struct preference_answers sum_pair(const struct preference_args *args,
                                                     const struct preference_pair *pair) {
    struct preference_answers answers;
    for (int side = 0; side < PREFERENCE_SIDES; side++) {
        sum_rows(args, pair->answer[side], pair->end[side], &answers.p[side], &answers.n[side]);
        answers.p[side] = -answers.p[side];
        answers.n[side] = fmaxf(answers.n[side], 1);
    }
    sum_rows(args, pair->begin[PREFERENCE_CHOSEN], pair->end[PREFERENCE_CHOSEN], &answers.nll,
             &answers.targets);
    return answers;
}

/* z of KTO; every thread gets it. */
static __device__ float find_kl(const struct preference_args *args) {
    const int count = args->batch->count;
    double total = 0;
    if (args->rule.objective != PREFERENCE_KTO || count == 0) return 0;
    for (int i = (int)threadIdx.x; i < count; i += PREFERENCE_THREADS)
        total += (double)(args->answers[i].p[PREFERENCE_REJECTED] -
                          args->batch->pairs[i].reference[PREFERENCE_REJECTED]);
    return fmaxf((float)(block_sum<PREFERENCE_THREADS>(total) / count), 0);
}

static __device__ void write_weights(const struct preference_args *args,
                                     const struct preference_pair *pair,
                                     const struct preference_value *value) {
    for (int side = 0; side < PREFERENCE_SIDES; side++)
        for (int row = pair->begin[side] + (int)threadIdx.x % WARP; row < pair->end[side];
             row += WARP)
            args->weights[row] = (side == PREFERENCE_CHOSEN ? value->chosen : 0) +
                                 (row >= pair->answer[side] ? value->answers[side] : 0);
}

/* The 1 says that one block runs at a time, so that registers are not spilled for more. */
static __global__ void __launch_bounds__(PREFERENCE_THREADS, 1)
    preference_kernel(struct preference_args args) {
    const struct preference_batch *batch = args.batch;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    for (int i = warp; i < batch->count; i += PREFERENCE_WARPS) {
        const struct preference_answers answers = sum_pair(&args, &batch->pairs[i]);
        if (lane == 0) args.answers[i] = answers;
    }
    __syncthreads();
    const float kl = find_kl(&args);
    for (int64_t row = threadIdx.x; row < args.count; row += PREFERENCE_THREADS)
        args.losses[row] = args.weights[row] = 0;
    __syncthreads();
    for (int i = warp; i < batch->count; i += PREFERENCE_WARPS) {
        const struct preference_pair *pair = &batch->pairs[i];
        const struct preference_value value =
            preference_evaluate(&args.rule, &args.answers[i], pair, kl);
        if (lane == 0) args.losses[pair->begin[PREFERENCE_CHOSEN]] = value.loss;
        write_weights(&args, pair, &value);
    }
    if (threadIdx.x != 0) return;
    struct preference_sums sums = *args.sums;
    for (int i = 0; i < batch->count; i++) {
        const struct preference_value value =
            preference_evaluate(&args.rule, &args.answers[i], &batch->pairs[i], kl);
        preference_add(&sums, &args.rule, &batch->pairs[i], &value, kl);
    }
    *args.sums = sums;
}

void cuda_preference(struct backend *be, const struct preference_args *args) {
    LAUNCH(preference_kernel, 1, PREFERENCE_THREADS, 0, cuda_state(be)->compute, *args);
    cuda_launched(be, "preference");
}
