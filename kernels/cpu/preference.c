#include <assert.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/preference_loss.h"

/* Sums -log p over rows [begin, end), and counts their targets. */
static void sum_rows(const struct preference_args *args, int32_t begin, int32_t end, float *sum,
                     float *targets) {
    double total = 0;
    int32_t counted = 0;
    for (int32_t row = begin; row < end; row++) {
        if (args->targets[row] < 0) continue;
        total += (double)args->losses[row];
        counted++;
    }
    *sum = (float)total;
    *targets = (float)counted;
}

static struct preference_answers sum_pair(const struct preference_args *args,
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

/* z of KTO. */
static float find_kl(const struct preference_args *args) {
    double total = 0;
    if (args->rule.objective != PREFERENCE_KTO || args->batch->count == 0) return 0;
    for (int32_t i = 0; i < args->batch->count; i++)
        total += (double)(args->answers[i].p[PREFERENCE_REJECTED] -
                          args->batch->pairs[i].reference[PREFERENCE_REJECTED]);
    return fmaxf((float)(total / args->batch->count), 0);
}

static void write_weights(const struct preference_args *args, const struct preference_pair *pair,
                          const struct preference_value *value) {
    for (int side = 0; side < PREFERENCE_SIDES; side++)
        for (int32_t row = pair->begin[side]; row < pair->end[side]; row++)
            args->weights[row] = (side == PREFERENCE_CHOSEN ? value->chosen : 0) +
                                 (row >= pair->answer[side] ? value->answers[side] : 0);
}

void cpu_preference(struct backend *be, const struct preference_args *args) {
    (void)be;
    const struct preference_batch *batch = args->batch;
    assert(2 * (int64_t)batch->count <= args->count);
#pragma omp parallel for schedule(static)
    for (int32_t i = 0; i < batch->count; i++) args->answers[i] = sum_pair(args, &batch->pairs[i]);
    const float kl = find_kl(args);
    memset(args->losses, 0, (size_t)args->count * sizeof *args->losses);
    memset(args->weights, 0, (size_t)args->count * sizeof *args->weights);
    for (int32_t i = 0; i < batch->count; i++) {
        const struct preference_pair *pair = &batch->pairs[i];
        const struct preference_value value =
            preference_evaluate(&args->rule, &args->answers[i], pair, kl);
        args->losses[pair->begin[PREFERENCE_CHOSEN]] = value.loss;
        write_weights(args, pair, &value);
        preference_add(args->sums, &args->rule, pair, &value, kl);
    }
}
