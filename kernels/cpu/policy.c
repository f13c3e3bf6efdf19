#include <assert.h>

#include "kernels/cpu/cpu.h"
#include "kernels/policy_loss.h"

/* Means over the tokens of the sequence whose rows begin with `first`. */
static struct policy_means find_means(const struct policy_args *args, int64_t first) {
    double log_ratio = 0, kl = 0, tokens = 0;
    if (!args->rule.sequence_level) return (struct policy_means){0, 0};
    for (int64_t row = first; row < first + args->length; row++) {
        if (args->targets[row] < 0) continue;
        if (args->given->has_old) log_ratio += (double)(args->old[row] - args->losses[row]);
        if (args->given->has_reference)
            kl += (double)policy_kl(args->losses[row], args->reference[row]);
        tokens++;
    }
    tokens = tokens > 0 ? tokens : 1;
    return (struct policy_means){(float)(log_ratio / tokens), (float)(kl / tokens)};
}

static struct policy_sums run_sequence(const struct policy_args *args, int64_t sequence) {
    const int64_t first = sequence * args->length;
    const struct policy_means means = find_means(args, first);
    struct policy_sums sums = {0};
    for (int64_t row = first; row < first + args->length; row++) {
        struct policy_value value = {0};
        if (args->targets[row] >= 0) {
            const float nll = args->losses[row], old = args->given->has_old ? args->old[row] : nll;
            value = policy_evaluate(&args->rule, &args->given->sequences[sequence], &means, nll,
                                    old, args->given->has_reference ? &args->reference[row] : NULL);
            policy_add_token(&sums, &value, nll, old, args->sampled[row]);
        }
        args->losses[row] = value.loss;
        args->weights[row] = value.weight;
    }
    policy_end_sequence(&sums, &args->rule);
    return sums;
}

void cpu_policy(struct backend *be, const struct policy_args *args) {
    (void)be;
    assert(args->batch >= 1 && args->length >= 1);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < args->batch; i++) args->parts[i] = run_sequence(args, i);
    policy_add(args->sums, &args->given->host);
    for (int64_t i = 0; i < args->batch; i++) policy_add(args->sums, &args->parts[i]);
}
