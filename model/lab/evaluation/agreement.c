#include "model/lab/evaluation/agreement.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/fraction.h"

int agreement_open(struct agreement *agreement, int64_t capacity) {
    *agreement = (struct agreement){.capacity = capacity};
    agreement->differences = malloc((size_t)capacity * sizeof *agreement->differences);
    return agreement->differences ? 0 : -1;
}

void agreement_close(struct agreement *agreement) {
    free(agreement->differences);
    *agreement = (struct agreement){0};
}

/* Returns the logarithm of the sum of exponentials. */
static double log_sum(const float *logits, int64_t count) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        if ((double)logits[i] > largest) largest = (double)logits[i];
    for (int64_t i = 0; i < count; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

void agreement_add(struct agreement *agreement, const float *sampler, const float *trainer,
                   int64_t vocabulary, int token) {
    double sampler_log = log_sum(sampler, vocabulary), trainer_log = log_sum(trainer, vocabulary);
    double kl = 0;
    int64_t moves = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        double log_p = (double)sampler[i] - sampler_log, log_q = (double)trainer[i] - trainer_log;
        if (log_p > -INFINITY) kl += exp(log_p) * (log_p - log_q);
        moves += (sampler[i] > sampler[token]) - (trainer[i] > trainer[token]);
    }
    agreement->differences[agreement->tokens++] =
        fabs(((double)trainer[token] - trainer_log) - ((double)sampler[token] - sampler_log));
    agreement->kl += kl;
    agreement->rank_changed += moves != 0;
    agreement->same_bits += memcmp(sampler, trainer, (size_t)vocabulary * sizeof *sampler) == 0;
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

void agreement_finish(struct agreement *agreement) {
    qsort(agreement->differences, (size_t)agreement->tokens, sizeof *agreement->differences,
          ascending);
}

double agreement_mean(const struct agreement *agreement) {
    double sum = 0;
    for (int64_t i = 0; i < agreement->tokens; i++) sum += agreement->differences[i];
    return sum / (double)agreement->tokens;
}

double agreement_percentile(const struct agreement *agreement, double share) {
    assert(agreement->tokens > 0);
    int64_t index = fraction_of(share, agreement->tokens, FRACTION_UP) - 1;
    return agreement->differences[index < 0 ? 0 : index];
}
