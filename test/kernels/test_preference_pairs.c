/* Losses of more pairs than a block of a GPU has warps, against fp64: documents of many lengths
 * with rows between them, and targets inside answers that are ignored. Derivatives are differences
 * of the losses. */
#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/check.h"
#include "test/preference_runs.h"

enum { C = PREFERENCE_CHOSEN, J = PREFERENCE_REJECTED, PAIRS = 37, LONGEST = 700, TAIL = 600 };
enum { ROWS = 3 * LONGEST + PAIRS * 60 + TAIL }; /* more than the pairs have */

/* A pair in fp64. */
struct pair {
    const struct preference_rule *rule;
    double p[2], n[2], r[2], nll, targets, z;
    bool undesirable;
};

struct problem {
    struct preference_batch *batch;
    int32_t targets[ROWS];
    double nll[ROWS];
    struct pair pairs[PAIRS];
};

static double softplus(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}

static double smoothed(double x, double s) {
    return (1 - s) * softplus(-x) + s * softplus(x);
}

static double log_odds(double a) {
    return a - log(1 - exp(a));
}

static double pair_loss(const void *state) {
    const struct pair *pair = state;
    const struct preference_rule *rule = pair->rule;
    const double beta = (double)rule->beta, s = (double)rule->label_smoothing;
    const double nll = (double)rule->nll_weight * pair->nll / pair->targets;
    const double c = pair->p[C], j = pair->p[J], mean_c = c / pair->n[C], mean_j = j / pair->n[J];
    const double ratio_c = c - pair->r[C], ratio_j = j - pair->r[J];
    switch (rule->objective) {
    case PREFERENCE_DPO: return nll + smoothed(beta * (ratio_c - ratio_j), s);
    case PREFERENCE_IPO:
        return nll + pow(ratio_c / pair->n[C] - ratio_j / pair->n[J] - 1 / (2 * beta), 2);
    case PREFERENCE_ORPO: return nll + beta * softplus(log_odds(mean_j) - log_odds(mean_c));
    case PREFERENCE_SIMPO: return nll + smoothed(beta * (mean_c - mean_j) - (double)rule->gamma, s);
    case PREFERENCE_KTO: break;
    }
    const double sign = pair->undesirable ? -1 : 1;
    const double w = (double)(sign < 0 ? rule->undesirable_weight : rule->desirable_weight);
    return w / (1 + exp(sign * beta * (ratio_c - pair->z)));
}

/* Largest second derivative by the log-probability of an answer. That of the log odds is at most
 * the square of the first, 1 / (1 - e^a), which is below 3.1 because no loss is below 0.4. */
static double second_derivative(const struct pair *pair) {
    const double beta = (double)pair->rule->beta, n = fmin(pair->n[C], pair->n[J]);
    switch (pair->rule->objective) {
    case PREFERENCE_IPO: return 2 / (n * n);
    case PREFERENCE_ORPO: return beta * 1.25 * 3.1 * 3.1 / (n * n);
    case PREFERENCE_SIMPO: return beta * beta / 4 / (n * n);
    default: return beta * beta / 4;
    }
}

/* Places documents, of which three are long. One target of five is ignored; with ORPO those of
 * chosen prompts count too. */
static void place(struct problem *p, const struct preference_rule *rule, const double *random) {
    const bool prompts = rule->objective == PREFERENCE_ORPO;
    int at = 3;
    for (int row = 0; row < ROWS; row++) {
        p->targets[row] = -1;
        p->nll[row] = (double)(float)(0.4 + fmin(fabs(random[row]), 4));
    }
    p->batch->count = PAIRS;
    for (int i = 0; i < 2 * PAIRS; i++) {
        const int side = i % 2, prompt = i * 5 % 7;
        const int length = i % 31 == 5 ? LONGEST : 1 + i * 11 % 43;
        struct preference_pair *pair = &p->batch->pairs[i / 2];
        pair->begin[side] = at;
        pair->answer[side] = at + prompt;
        pair->end[side] = at + prompt + length;
        pair->undesirable = i / 2 % 3 == 1;
        for (int row = prompts && side == C ? at : at + prompt; row < pair->end[side]; row++)
            p->targets[row] = (row - at - prompt) % 5 == 4 ? -1 : 9; /* never the first */
        at = pair->end[side] + i % 3;
    }
    cr_assert(at + TAIL <= ROWS);
    for (int row = 0; row < ROWS; row++)
        if (p->targets[row] < 0) p->nll[row] = 0;
}

/* Fills in the pairs in fp64, and references near their log-probabilities. */
static void add_up(struct problem *p, const struct preference_rule *rule, const double *random) {
    double z = 0;
    for (int i = 0; i < PAIRS; i++) {
        struct preference_pair *given = &p->batch->pairs[i];
        struct pair *pair = &p->pairs[i];
        *pair = (struct pair){.rule = rule, .undesirable = given->undesirable};
        for (int side = 0; side < 2; side++) {
            for (int row = given->begin[side]; row < given->end[side]; row++) {
                if (p->targets[row] < 0) continue;
                if (row >= given->answer[side]) pair->p[side] -= p->nll[row], pair->n[side]++;
                if (side == C) pair->nll += p->nll[row], pair->targets++;
            }
            given->reference[side] = (float)(pair->p[side] + 3 * random[2 * i + side] - side);
            pair->r[side] = (double)given->reference[side];
        }
        z += (pair->p[J] - pair->r[J]) / PAIRS;
    }
    for (int i = 0; i < PAIRS; i++) p->pairs[i].z = fmax(z, 0);
}

static void verify_rows(struct check *c, struct problem *p, const struct tensor *losses,
                        const struct tensor *weights) {
    double *loss = check_doubles(c, ROWS), *loss_size = check_doubles(c, ROWS);
    double *weight = check_doubles(c, ROWS), *weight_size = check_doubles(c, ROWS);
    const double *got = check_read(c, weights);
    for (int i = 0; i < PAIRS; i++) {
        const struct preference_pair *given = &p->batch->pairs[i];
        struct pair *pair = &p->pairs[i];
        const double terms =
            pair->nll - pair->p[C] - pair->p[J] + fabs(pair->r[C]) + fabs(pair->r[J]) + pair->z;
        double steepest = 0;
        for (int side = 0; side < 2; side++) {
            const double answer = -check_derivative(pair_loss, pair, &pair->p[side]);
            const double chosen = side == C ? check_derivative(pair_loss, pair, &pair->nll) : 0;
            steepest = fmax(steepest, fabs(answer) + chosen);
            for (int row = given->begin[side]; row < given->end[side]; row++) {
                weight[row] = chosen + (row >= given->answer[side] ? answer : 0);
                if (p->targets[row] < 0) weight[row] = got[row]; /* multiplies a gradient of 0 */
                weight_size[row] = 4 * (fabs(answer) + chosen) + second_derivative(pair) * terms;
            }
        }
        loss[given->begin[C]] = pair_loss(pair);
        loss_size[given->begin[C]] = pair_loss(pair) + steepest * terms;
    }
    check_close(c, "preference", losses, loss, loss_size);
    check_close(c, "preference", weights, weight, weight_size);
}

static void verify_sums(struct check *c, const struct problem *p,
                        const struct preference_sums *device) {
    const struct preference_rule *rule = p->pairs[0].rule;
    const bool kto = rule->objective == PREFERENCE_KTO;
    const bool means = rule->objective == PREFERENCE_ORPO || rule->objective == PREFERENCE_SIMPO;
    double sides[2] = {0}, values[2] = {0}, rewards[2] = {0}, sizes[2] = {0}, accurate = 0;
    struct preference_sums got;
    backend_download(&c->be, &got, device, sizeof got);
    for (int i = 0; i < PAIRS; i++) {
        const struct pair *pair = &p->pairs[i];
        double value[2], reward[2];
        for (int side = 0; side < 2; side++) {
            value[side] = pair->p[side] / (means ? pair->n[side] : 1);
            reward[side] = (double)rule->beta * (value[side] - (means ? 0 : pair->r[side]));
        }
        accurate += !kto && reward[C] > reward[J];
        for (int side = 0; side < 2; side++) {
            const int from = kto ? C : side;
            if (kto && pair->undesirable != (side == J)) continue;
            sides[side]++;
            values[side] += value[from];
            rewards[side] += reward[from];
            sizes[side] += fabs(value[from]);
        }
    }
    cr_expect_eq(got.pairs, 3 + PAIRS);
    cr_expect_eq(got.accurate, (float)accurate);
    for (int side = 0; side < 2; side++) {
        const double bound = 8 * 0x1p-24 * sizes[side]; /* as "preference" in tolerances.c */
        cr_expect_eq(got.sides[side], (float)sides[side]);
        cr_expect_leq(fabs((double)got.p[side] - values[side]), bound);
        cr_expect_leq(fabs((double)got.rewards[side] - rewards[side]),
                      2 * bound * fmax(1, (double)rule->beta));
    }
    if (kto) cr_expect_leq(fabs((double)got.kl / PAIRS / p->pairs[0].z - 1), 1e-5);
    else cr_expect_eq(got.kl, 0);
}

static void many_pairs(struct check *c, const void *given) {
    const struct preference_run *run = given;
    const size_t bytes = sizeof(struct preference_batch) + PAIRS * sizeof(struct preference_pair);
    struct problem *p = (void *)check_doubles(c, sizeof *p / sizeof(double) + 1);
    const struct tensor normal = check_normal(c, DTYPE_F32, ROWS, 0, 1);
    const double *random = check_read(c, &normal);
    p->batch = (void *)check_doubles(c, (int64_t)(bytes / sizeof(double) + 1));
    place(p, &run->rule, random);
    add_up(p, &run->rule, random);
    struct tensor losses = check_tensor(c, CHECK_WRITE, DTYPE_F32, ROWS, 0, p->nll);
    struct tensor weights = check_output(c, DTYPE_F32, ROWS, 0);
    const struct preference_sums before = {.pairs = 3};
    struct preference_sums *sums = check_memory(c, CHECK_WRITE, &before, sizeof before);
    CHECK_OP(c, preference, .losses = losses.data, .weights = weights.data,
             .targets = check_memory(c, CHECK_READ, p->targets, sizeof p->targets), .count = ROWS,
             .sums = sums, .rule = run->rule, .batch = check_memory(c, CHECK_READ, p->batch, bytes),
             .answers =
                 check_memory(c, CHECK_WRITE, NULL, PAIRS * sizeof(struct preference_answers)));
    if (!c->verify) return;
    verify_rows(c, p, &losses, &weights);
    verify_sums(c, p, sums);
}

Test(preference, many_pairs) {
    for (int i = 0; i < PREFERENCE_RUNS; i++) check_everywhere(many_pairs, &preference_runs[i]);
}
