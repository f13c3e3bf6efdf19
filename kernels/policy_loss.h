/* Losses of policy gradients and their derivatives, computed alike on both backends.
 *
 * With x = -log p of a token, r = exp(x_old - x) the ratio, A the advantage of its completion:
 *
 *     -min(min(r, delta) A, clamp(r, 1 - low, 1 + high) A)        PPO; Schulman 2017, 1707.06347
 *     min(r, high) A x, where the first factor is a constant        CISPO; MiniMax 2025, 2506.13585
 *
 * plus beta (exp(d) - d - 1), d = x - x_reference, times r if corrects_kl. The sequence level has
 * one ratio for a completion, exp(mean of x_old - x) (GSPO; Zheng 2025, 2507.18071). Each loss is
 * multiplied by the factor of its sequence, in which the kinds of GRPO differ (Shao 2024,
 * 2402.03300; DAPO: Yu 2025, 2503.14476; Dr. GRPO: Liu 2025, 2503.20783). Like TRL 1.16, whose
 * torch.min gives both of two equal arguments half of the derivative. */
#pragma once

#include <math.h>

#include "kernels/host_device.h"
#include "kernels/policy_args.h"

/* Means over the tokens of a completion. */
struct policy_means {
    float log_ratio; /* x_old - x */
    float kl;
};

struct policy_value {
    float loss, weight, kl;
    int low, high; /* 1 if the ratio is clipped */
};

static ON_HOST_AND_DEVICE float policy_kl(float nll, float reference) {
    return expm1f(nll - reference) - (nll - reference);
}

static ON_HOST_AND_DEVICE void policy_clip(struct policy_value *value,
                                           const struct policy_rule *rule, float ratio,
                                           float advantage) {
    const float least = 1 - rule->low, most = 1 + rule->high;
    const float free = fminf(ratio, rule->delta), clipped = fminf(fmaxf(ratio, least), most);
    const float free_slope = ratio <= rule->delta ? advantage : 0;
    const float clipped_slope = ratio >= least && ratio <= most ? advantage : 0;
    const float a = free * advantage, b = clipped * advantage;
    const float slope = a < b   ? free_slope
                        : b < a ? clipped_slope
                                : (free_slope + clipped_slope) / 2;
    value->loss = -fminf(a, b);
    value->weight = slope * ratio;
    value->low = free < least && advantage < 0;
    value->high = free > most && advantage > 0;
}

/* reference: NULL, or -log p of the token. */
static ON_HOST_AND_DEVICE struct policy_value
policy_evaluate(const struct policy_rule *rule, const struct policy_sequence *sequence,
                const struct policy_means *means, float nll, float old, const float *reference) {
    const float advantage = sequence->advantage;
    const float ratio = expf(rule->sequence_level ? means->log_ratio : old - nll);
    struct policy_value value;
    if (rule->cispo) {
        const float constant = fminf(ratio, rule->high) * advantage;
        value.loss = constant * nll;
        value.weight = constant;
        value.low = 0;
        value.high = ratio > rule->high && advantage > 0;
    } else {
        policy_clip(&value, rule, ratio, advantage);
    }
    value.kl = 0;
    if (reference) {
        const float kl = policy_kl(nll, *reference), slope = expm1f(nll - *reference);
        const float factor = rule->corrects_kl ? ratio : 1;
        value.kl = factor * kl;
        value.loss += rule->beta * value.kl;
        value.weight += rule->beta * factor * slope;
        if (rule->corrects_kl)
            value.weight -= rule->beta * ratio * (rule->sequence_level ? means->kl : kl);
    }
    value.loss *= sequence->factor;
    value.weight *= sequence->factor;
    return value;
}

/* Adds a token to the sums of its sequence. old: that of the trainer before its update. */
static ON_HOST_AND_DEVICE void policy_add_token(struct policy_sums *sums,
                                                const struct policy_value *value, float nll,
                                                float old, float sampled) {
    sums->tokens += 1;
    sums->kl += value->kl;
    sums->nll += nll;
    sums->low += (float)value->low;
    sums->high += (float)value->high;
    sums->difference += fabsf(sampled - old);
    sums->mismatch += policy_kl(sampled, old);
    sums->largest = fmaxf(sums->largest, expf(sampled - old));
}

/* Completes the sums of a sequence, whose tokens have one ratio on the sequence level. */
static ON_HOST_AND_DEVICE void policy_end_sequence(struct policy_sums *sums,
                                                   const struct policy_rule *rule) {
    const float tokens = rule->sequence_level ? fmaxf(sums->tokens, 1) : 1;
    sums->sequences = 1;
    sums->units = rule->sequence_level ? 1 : sums->tokens;
    sums->low /= tokens;
    sums->high /= tokens;
}

static ON_HOST_AND_DEVICE void policy_add(struct policy_sums *sums,
                                          const struct policy_sums *more) {
    sums->tokens += more->tokens;
    sums->sequences += more->sequences;
    sums->micro_batches += more->micro_batches;
    sums->units += more->units;
    sums->low += more->low;
    sums->high += more->high;
    sums->kl += more->kl;
    sums->nll += more->nll;
    sums->difference += more->difference;
    sums->mismatch += more->mismatch;
    sums->largest = fmaxf(sums->largest, more->largest);
    sums->reward += more->reward;
    sums->deviation += more->deviation;
    sums->constant += more->constant;
    sums->length += more->length;
    sums->truncated += more->truncated;
}
