/* Losses of pairs of answers and their derivatives, computed alike on both backends.
 *
 * With p the log-probability of an answer, the sum over its n tokens, r that of the reference model
 * for the same answer, and c and j for the chosen and the rejected document:
 *
 *     DPO     S(beta ((p_c - r_c) - (p_j - r_j)))                        Rafailov 2023, 2305.18290
 *     IPO     ((p_c - r_c) / n_c - (p_j - r_j) / n_j - 1 / (2 beta))^2       Azar 2023, 2310.12036
 *     SIMPO   S(beta (p_c / n_c - p_j / n_j) - gamma)                        Meng 2024, 2405.14734
 *     ORPO    -beta log sigmoid(o(p_c / n_c) - o(p_j / n_j))                 Hong 2024, 2403.07691
 *     KTO     w (1 - sigmoid(+-beta (p_c - r_c - z)))                  Ethayarajh 2024, 2402.01306
 *
 * with the numbers of arXiv, o(a) = a - log(1 - e^a), the log odds, + for a desirable answer, and
 * z = max(0, mean of p_j - r_j over the pairs of the batch), where KTO's second document is the
 * prompt with another row's answer; z has no gradient. The batch is a micro-batch of one rank.
 *
 * S(x) = -(1 - s) log sigmoid(x) - s log sigmoid(-x), where s is the label smoothing. All but KTO
 * add nll_weight times the mean of -log p over the targets of the chosen document. */
#pragma once

#include <math.h>

#include "kernels/host_device.h"
#include "kernels/logistic.h"
#include "kernels/preference_args.h"

/* Loss of a pair, and its derivatives by -log p of a target of each answer, and of any target of
 * the chosen document. */
struct preference_value {
    float loss;
    float answers[PREFERENCE_SIDES], chosen;
    float rewards[PREFERENCE_SIDES], p[PREFERENCE_SIDES]; /* for the sums */
};

/* 1 - e^a for the mean log-probability a of an answer, which rounding can bring to 0. */
static ON_HOST_AND_DEVICE float preference_one_minus_exp(float a) {
    return -expm1f(fminf(a, -1e-7f));
}

/* Adds S(x) to the loss, and its derivative times those of x by p of each side. */
static ON_HOST_AND_DEVICE void preference_add_smoothed(struct preference_value *value, float x,
                                                       float smoothing, float by_chosen,
                                                       float by_rejected) {
    const float slope = smoothing * sigmoid(x) - (1 - smoothing) * sigmoid(-x);
    value->loss += (1 - smoothing) * softplus(-x) + smoothing * softplus(x);
    value->answers[PREFERENCE_CHOSEN] = -slope * by_chosen;
    value->answers[PREFERENCE_REJECTED] = slope * by_rejected;
}

/* Loss of a pair. kl: z of KTO. */
static ON_HOST_AND_DEVICE struct preference_value
preference_evaluate(const struct preference_rule *rule, const struct preference_answers *answers,
                    const struct preference_pair *pair, float kl) {
    enum { C = PREFERENCE_CHOSEN, J = PREFERENCE_REJECTED };
    struct preference_value value;
    const float beta = rule->beta, n_c = answers->n[C], n_j = answers->n[J];
    float p_c = answers->p[C], p_j = answers->p[J];
    float ratio_c = p_c - pair->reference[C], ratio_j = p_j - pair->reference[J];
    value.chosen = rule->nll_weight / fmaxf(answers->targets, 1.0f);
    value.loss = value.chosen * answers->nll;
    value.answers[C] = value.answers[J] = 0;
    switch (rule->objective) {
    case PREFERENCE_DPO:
        preference_add_smoothed(&value, beta * (ratio_c - ratio_j), rule->label_smoothing, beta,
                                beta);
        break;
    case PREFERENCE_IPO: {
        const float d = ratio_c / n_c - ratio_j / n_j - 1 / (2 * beta);
        value.loss += d * d;
        value.answers[C] = -2 * d / n_c;
        value.answers[J] = 2 * d / n_j;
        break;
    }
    case PREFERENCE_SIMPO:
        ratio_c = p_c /= n_c;
        ratio_j = p_j /= n_j;
        preference_add_smoothed(&value, beta * (p_c - p_j) - rule->gamma, rule->label_smoothing,
                                beta / n_c, beta / n_j);
        break;
    case PREFERENCE_ORPO: {
        ratio_c = p_c /= n_c;
        ratio_j = p_j /= n_j;
        const float rest_c = preference_one_minus_exp(p_c), rest_j = preference_one_minus_exp(p_j);
        const float x = p_c - p_j - (logf(rest_c) - logf(rest_j));
        const float slope = beta * sigmoid(-x);
        value.loss += beta * softplus(-x);
        value.answers[C] = slope / (rest_c * n_c);
        value.answers[J] = -slope / (rest_j * n_j);
        break;
    }
    case PREFERENCE_KTO: {
        const float sign = pair->undesirable ? -1.0f : 1.0f;
        const float weight = pair->undesirable ? rule->undesirable_weight : rule->desirable_weight;
        const float s = sigmoid(sign * beta * (ratio_c - kl));
        value.chosen = 0;
        value.loss = weight * (1 - s);
        value.answers[C] = sign * weight * beta * s * (1 - s);
        break;
    }
    }
    value.rewards[C] = beta * ratio_c;
    value.rewards[J] = beta * ratio_j;
    value.p[C] = p_c;
    value.p[J] = p_j;
    return value;
}

/* Adds a pair to the sums. */
static ON_HOST_AND_DEVICE void preference_add(struct preference_sums *sums,
                                              const struct preference_rule *rule,
                                              const struct preference_pair *pair,
                                              const struct preference_value *value, float kl) {
    const int single = rule->objective == PREFERENCE_KTO;
    sums->pairs += 1;
    sums->kl += kl;
    for (int side = 0; side < PREFERENCE_SIDES; side++) {
        if (single && side != (pair->undesirable ? PREFERENCE_REJECTED : PREFERENCE_CHOSEN))
            continue;
        const int from = single ? PREFERENCE_CHOSEN : side;
        sums->sides[side] += 1;
        sums->rewards[side] += value->rewards[from];
        sums->p[side] += value->p[from];
    }
    if (!single && value->rewards[PREFERENCE_CHOSEN] > value->rewards[PREFERENCE_REJECTED])
        sums->accurate += 1;
}
