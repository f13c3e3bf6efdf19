/* Losses of pairs against PyTorch in fp64: test/golden/preference_losses.py. The pairs have prompts
 * and answers of any length, down to none and one token; some answers are nearly certain, and some
 * losses saturate. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "test/kernels/golden.h"
#include "test/preference_runs.h"

enum { C = PREFERENCE_CHOSEN, J = PREFERENCE_REJECTED, PAIRS = 7 };

struct given {
    const struct preference_run *run;
    const char *name; /* of the case in the fixture */
};

static double *values_of(struct check *c, const struct given *given, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "preference.%s.%s", given->name, what);
    return golden_values(c, name);
}

static void read_pairs(struct check *c, const struct given *given, struct preference_pair *pairs) {
    const int32_t *begin, *answer, *end, *undesirable;
    const double *reference = values_of(c, given, "reference");
    golden_tokens(c, "preference.begin", &begin);
    golden_tokens(c, "preference.answer", &answer);
    golden_tokens(c, "preference.end", &end);
    golden_tokens(c, "preference.undesirable", &undesirable);
    for (int i = 0; i < 2 * PAIRS; i++) {
        pairs[i / 2].begin[i % 2] = begin[i];
        pairs[i / 2].answer[i % 2] = answer[i];
        pairs[i / 2].end[i % 2] = end[i];
        pairs[i / 2].reference[i % 2] = (float)reference[i];
        pairs[i / 2].undesirable = undesirable[i / 2];
    }
}

/* Marks rows whose targets count: those of answers, with ORPO also those of chosen prompts. */
static void mark_targets(const struct given *given, const struct preference_pair *pairs,
                         int32_t *targets, int64_t rows) {
    const bool prompts = given->run->rule.objective == PREFERENCE_ORPO;
    for (int64_t row = 0; row < rows; row++) targets[row] = -1;
    for (int i = 0; i < 2 * PAIRS; i++) {
        const struct preference_pair *pair = &pairs[i / 2];
        const bool chosen = i % 2 == C;
        for (int row = prompts && chosen ? pair->begin[C] : pair->answer[i % 2];
             row < pair->end[i % 2]; row++)
            targets[row] = 5;
    }
}

/* Size of the terms that a pair's loss is the difference of, and the largest second derivative of
 * its loss by the log-probability of an answer: rounding moves a loss by its derivative times the
 * size, and a derivative by the second one. ORPO's second derivative is 0 here, because it is
 * relative to the first: odds of an answer that is nearly certain have no limit. */
struct sizes {
    double terms, second;
};

static struct sizes find_sizes(const struct preference_rule *rule,
                               const struct preference_pair *pairs, int at, const double *nll) {
    const struct preference_pair *pair = &pairs[at];
    double n[2], terms = 0, kl = 0;
    for (int side = 0; side < 2; side++) {
        n[side] = pair->end[side] - pair->answer[side];
        terms += fabs((double)pair->reference[side]);
        for (int row = pair->answer[side]; row < pair->end[side]; row++) terms += nll[row];
    }
    for (int i = 0; i < PAIRS; i++) kl += 2 * fabs((double)pairs[i].reference[J]) / PAIRS;
    const double least = fmin(n[C], n[J]), beta = (double)rule->beta;
    switch (rule->objective) {
    case PREFERENCE_IPO: return (struct sizes){terms, 2 / (least * least)};
    case PREFERENCE_SIMPO: return (struct sizes){terms, beta * beta / 4 / (least * least)};
    case PREFERENCE_ORPO: return (struct sizes){terms, 0};
    case PREFERENCE_KTO: return (struct sizes){terms + kl, beta * beta / 8};
    default: return (struct sizes){terms, beta * beta / 4};
    }
}

static void verify_rows(struct check *c, const struct given *given,
                        const struct preference_pair *pairs, const int32_t *targets,
                        const struct tensor *losses, const struct tensor *weights) {
    const int64_t rows = tensor_count(losses);
    const double *nll = golden_values(c, "preference.nll");
    const double *of_pairs = values_of(c, given, "loss"), *got = check_read(c, weights);
    double *expected = check_doubles(c, rows), *size = check_doubles(c, rows);
    double *expected_weights = values_of(c, given, "weights"),
           *weight_size = check_doubles(c, rows);
    for (int i = 0; i < 2 * PAIRS; i++) {
        const struct preference_pair *pair = &pairs[i / 2];
        const struct sizes sizes = find_sizes(&given->run->rule, pairs, i / 2, nll);
        const int first = pair->begin[C];
        expected[first] = of_pairs[i / 2];
        for (int row = pair->begin[i % 2]; row < pair->end[i % 2]; row++) {
            const double weight = fabs(expected_weights[row]);
            size[first] = fmax(size[first], of_pairs[i / 2] + weight * sizes.terms);
            weight_size[row] = 4 * weight + sizes.second * sizes.terms;
            /* A prompt's targets are ignored, so its weights do not matter. */
            if (targets[row] < 0) expected_weights[row] = got[row];
        }
    }
    check_close(c, "preference", losses, expected, size);
    check_close(c, "preference", weights, expected_weights, weight_size);
}

static void verify_sums(struct check *c, const struct given *given,
                        const struct preference_pair *pairs, const struct preference_sums *device) {
    const bool kto = given->run->rule.objective == PREFERENCE_KTO;
    const double *rewards = values_of(c, given, "rewards"), *logps = values_of(c, given, "logps");
    double sides[2] = {0}, sums[2] = {0}, p[2] = {0}, size[2] = {0}, accurate = 0;
    struct preference_sums got;
    backend_download(&c->be, &got, device, sizeof got);
    for (int i = 0; i < 2 * PAIRS; i++) {
        const struct preference_pair *pair = &pairs[i / 2];
        const int side = i % 2, from = kto ? i - side : i;
        accurate += side == C && !kto && rewards[i] > rewards[i + 1];
        if (kto && side != pair->undesirable) continue;
        sides[side]++;
        sums[side] += rewards[from];
        p[side] += logps[from];
        size[side] += fabs(logps[from]) + fabs(rewards[from]);
    }
    cr_expect_eq(got.pairs, 3 + PAIRS);
    cr_expect_eq(got.accurate, (float)accurate);
    for (int side = 0; side < 2; side++) {
        const double error = 8 * 0x1p-24 * size[side];
        cr_expect_eq(got.sides[side], (float)sides[side]);
        cr_expect(fabs((double)got.p[side] - p[side]) <= error, "%s: p %g, not %g", given->name,
                  (double)got.p[side], p[side]);
        cr_expect(fabs((double)got.rewards[side] - sums[side]) <= error, "%s: rewards %g, not %g",
                  given->name, (double)got.rewards[side], sums[side]);
    }
    const double kl = PAIRS * *values_of(c, given, "kl");
    cr_expect(fabs((double)got.kl - kl) <= 8 * 0x1p-24 * PAIRS * 200, "%s: %g, not %g", given->name,
              (double)got.kl, kl);
}

static void golden(struct check *c, const void *given_case) {
    const struct given *given = given_case;
    const double *nll = golden_values(c, "preference.nll");
    const struct tensor shape = golden_tensor(c, CHECK_READ, "preference.nll");
    const int64_t rows = tensor_count(&shape);
    const size_t bytes = sizeof(struct preference_batch) + PAIRS * sizeof(struct preference_pair);
    struct preference_batch *batch = (void *)check_doubles(c, (int64_t)(bytes / 8 + 1));
    int32_t *targets = (void *)check_doubles(c, rows);
    double *losses = check_doubles(c, rows);
    batch->count = PAIRS;
    read_pairs(c, given, batch->pairs);
    mark_targets(given, batch->pairs, targets, rows);
    for (int64_t row = 0; row < rows; row++) losses[row] = targets[row] < 0 ? 0 : nll[row];
    struct tensor out = check_tensor(c, CHECK_WRITE, DTYPE_F32, rows, 0, losses);
    struct tensor weights = check_output(c, DTYPE_F32, rows, 0);
    const struct preference_sums before = {.pairs = 3};
    struct preference_sums *sums = check_memory(c, CHECK_WRITE, &before, sizeof before);
    CHECK_OP(c, preference, .losses = out.data, .weights = weights.data,
             .targets = check_memory(c, CHECK_READ, targets, (size_t)rows * sizeof *targets),
             .count = rows, .sums = sums, .rule = given->run->rule,
             .batch = check_memory(c, CHECK_READ, batch, bytes),
             .answers =
                 check_memory(c, CHECK_WRITE, NULL, PAIRS * sizeof(struct preference_answers)));
    if (!c->verify) return;
    verify_rows(c, given, batch->pairs, targets, &out, &weights);
    verify_sums(c, given, batch->pairs, sums);
}

Test(preference, golden) {
    for (int i = 0; i < PREFERENCE_RUNS; i++)
        check_everywhere(golden,
                         &(const struct given){&preference_runs[i], preference_runs[i].name});
}

/* The estimate of the divergence is below 0 and is replaced by 0. */
Test(preference, kto_clamped) {
    const struct preference_run *kto = &preference_runs[PREFERENCE_RUNS - 1];
    check_everywhere(golden, &(const struct given){kto, "kto_clamped"});
}

/* A batch without pairs, as one of ranks may have. */
static void no_pairs(struct check *c, const void *given) {
    (void)given;
    const int32_t targets[] = {-1, -1, -1}, none = 0;
    const double zeros[3] = {0};
    struct tensor losses = check_tensor(c, CHECK_WRITE, DTYPE_F32, 3, 0, zeros);
    struct tensor weights = check_output(c, DTYPE_F32, 3, 0);
    const struct preference_sums before = {.pairs = 3, .kl = 2};
    struct preference_sums *sums = check_memory(c, CHECK_WRITE, &before, sizeof before);
    CHECK_OP(c, preference, .losses = losses.data, .weights = weights.data,
             .targets = check_memory(c, CHECK_READ, targets, sizeof targets), .count = 3,
             .sums = sums, .rule = preference_runs[PREFERENCE_RUNS - 1].rule,
             .batch = check_memory(c, CHECK_READ, &none, sizeof none),
             .answers = check_memory(c, CHECK_WRITE, NULL, sizeof(struct preference_answers)));
    if (!c->verify) return;
    struct preference_sums got;
    backend_download(&c->be, &got, sums, sizeof got);
    check_equal(c, "losses", &losses, zeros);
    check_equal(c, "weights", &weights, zeros);
    cr_expect_eq(memcmp(&got, &before, sizeof got), 0);
}

Test(preference, no_pairs) {
    check_everywhere(no_pairs, NULL);
}
