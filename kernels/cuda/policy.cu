/* Losses of completions (kernels/policy_loss.h) in one block, one warp to a sequence: a batch has
 * few, and one fixed order of addition gives the same sums every time. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/reduce.h"
#include "kernels/policy_loss.h"

enum { POLICY_THREADS = 512, POLICY_WARPS = POLICY_THREADS / WARP };

/* Means over the tokens of the sequence whose rows begin with `first`; every lane gets them. */
static __device__ struct policy_means find_means(const struct policy_args *args, int64_t first) {
    double log_ratio = 0, kl = 0;
    float tokens = 0;
    if (!args->rule.sequence_level) return {0, 0};
    for (int64_t row = first + threadIdx.x % WARP; row < first + args->length; row += WARP) {
        if (args->targets[row] < 0) continue;
        if (args->given->has_old) log_ratio += (double)(args->old[row] - args->losses[row]);
        if (args->given->has_reference)
            kl += (double)policy_kl(args->losses[row], args->reference[row]);
        tokens += 1;
    }
    const double count = fmaxf(warp_sum(tokens), 1);
    return {(float)(warp_sum(log_ratio) / count), (float)(warp_sum(kl) / count)};
}

/* Adds the lanes' sums; every lane gets them. */
static __device__ struct policy_sums sum_lanes(const struct policy_sums *lane) {
    struct policy_sums sums = {};
    sums.tokens = warp_sum(lane->tokens);
    sums.low = warp_sum(lane->low);
    sums.high = warp_sum(lane->high);
    sums.kl = warp_sum(lane->kl);
    sums.nll = warp_sum(lane->nll);
    sums.difference = warp_sum(lane->difference);
    sums.mismatch = warp_sum(lane->mismatch);
    sums.largest = warp_max(lane->largest);
    return sums;
}

static __device__ struct policy_sums run_sequence(const struct policy_args *args,
                                                  int64_t sequence) {
    const int64_t first = sequence * args->length;
    const struct policy_means means = find_means(args, first);
    const struct policy_sequence given = args->given->sequences[sequence];
    struct policy_sums lane = {};
    for (int64_t row = first + threadIdx.x % WARP; row < first + args->length; row += WARP) {
        struct policy_value value = {};
        if (args->targets[row] >= 0) {
            const float nll = args->losses[row], old = args->given->has_old ? args->old[row] : nll;
            value = policy_evaluate(&args->rule, &given, &means, nll, old,
                                    args->given->has_reference ? &args->reference[row] : nullptr);
            policy_add_token(&lane, &value, nll, old, args->sampled[row]);
        }
        args->losses[row] = value.loss;
        args->weights[row] = value.weight;
    }
    struct policy_sums sums = sum_lanes(&lane);
    policy_end_sequence(&sums, &args->rule);
    return sums;
}

/* The 1 says that one block runs at a time, so that registers are not spilled for more. */
static __global__ void __launch_bounds__(POLICY_THREADS, 1) policy_kernel(struct policy_args args) {
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    for (int64_t i = warp; i < args.batch; i += POLICY_WARPS) {
        const struct policy_sums sums = run_sequence(&args, i);
        if (lane == 0) args.parts[i] = sums;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    struct policy_sums sums = *args.sums;
    policy_add(&sums, &args.given->host);
    for (int64_t i = 0; i < args.batch; i++) policy_add(&sums, &args.parts[i]);
    *args.sums = sums;
}

void cuda_policy(struct backend *be, const struct policy_args *args) {
    LAUNCH(policy_kernel, 1, POLICY_THREADS, 0, cuda_state(be)->compute, *args);
    cuda_launched(be, "policy");
}
