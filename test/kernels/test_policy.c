/* Losses of completions against TRL's in fp64: test/golden/policy.py. There are more sequences than
 * a block has warps, and one has no target. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/io/safetensors.h"
#include "test/kernels/check.h"
#include "test/safetensors_find.h"

enum { SEQUENCES = 20, LENGTH = 70, ROWS = SEQUENCES * LENGTH };

struct given {
    const char *name;
    struct policy_rule rule;
};

static const void *find(const struct safetensors *file, const char *name) {
    const struct safetensors_entry *entry = safetensors_find(file, name);
    cr_assert(entry, "no %s", name);
    return safetensors_data(file, entry);
}

static void *input(struct check *c, const struct safetensors *file, const char *name,
                   int64_t count) {
    const void *data = find(file, name);
    void *memory = check_memory(c, CHECK_READ, data, (size_t)count * sizeof(float));
    free((void *)data);
    return memory;
}

/* Compares the loss, the derivatives and the sums. */
static void verify(struct check *c, const struct given *given, const struct safetensors *file,
                   const int32_t *mask, const struct tensor *losses, const struct tensor *weights,
                   const struct policy_sums *device) {
    char name[64];
    const double *got = check_read(c, losses);
    double total = 0, tokens = 0, expected_weights[ROWS], size[ROWS];
    struct policy_sums sums;
    backend_download(&c->be, &sums, device, sizeof sums);
    for (int i = 0; i < ROWS; i++) {
        total += got[i] / SEQUENCES;
        tokens += mask[i];
        cr_expect(mask[i] || got[i] == 0);
    }
    snprintf(name, sizeof name, "%s.loss", given->name);
    float *loss = (float *)find(file, name);
    cr_expect(fabs(total - (double)*loss) <= 4 * 0x1p-24, "%s: %.9g, not %.9g", given->name, total,
              (double)*loss);
    free(loss);
    snprintf(name, sizeof name, "%s.weights", given->name);
    float *values = (float *)find(file, name);
    for (int i = 0; i < ROWS; i++) {
        expected_weights[i] = (double)values[i] * SEQUENCES;
        size[i] = fabs(expected_weights[i]) + SEQUENCES / tokens; /* advantages are near 1 */
    }
    check_close(c, "policy", weights, expected_weights, size);
    free(values);
    snprintf(name, sizeof name, "%s.kl", given->name);
    float *kl = (float *)find(file, name);
    cr_expect(fabs((double)sums.kl / tokens - (double)*kl) <= 1e-6, "%s: %g, not %g", given->name,
              (double)sums.kl / tokens, (double)*kl);
    free(kl);
    cr_expect_eq(sums.tokens, 3 + (float)tokens);
    cr_expect_eq(sums.sequences, SEQUENCES);
    cr_expect_eq(sums.reward, 1.5f, "of the host");
    cr_expect_gt(sums.high, 0);
    cr_expect(given->rule.cispo == (sums.low == 0));
    cr_expect_eq(sums.units, (float)(given->rule.sequence_level ? SEQUENCES : tokens));
    cr_expect_eq(sums.largest, 7, "all others are exp(0)");
}

static void body(struct check *c, const void *given_case) {
    const struct given *given = given_case;
    struct safetensors file;
    struct error error;
    cr_assert_eq(safetensors_open(&file, "test/golden/policy.safetensors", &error), 0, "%s",
                 error.text);
    int32_t *mask = (int32_t *)find(&file, "mask"), targets[ROWS];
    float *nll = (float *)find(&file, "nll"), *advantages = (float *)find(&file, "advantages");
    double losses[ROWS], tokens = 0;
    for (int i = 0; i < ROWS; i++) {
        targets[i] = mask[i] ? 5 : -1;
        losses[i] = mask[i] ? (double)nll[i] : 0;
        tokens += mask[i];
    }
    const size_t bytes = sizeof(struct policy_batch) + SEQUENCES * sizeof(struct policy_sequence);
    struct policy_batch *batch = calloc(1, bytes);
    batch->has_old = batch->has_reference = 1;
    batch->host.reward = 1.5f;
    for (int i = 0; i < SEQUENCES; i++)
        batch->sequences[i] = (struct policy_sequence){advantages[i], (float)(SEQUENCES / tokens)};
    const struct policy_sums before = {.tokens = 3, .largest = 7};
    struct policy_sums *sums = check_memory(c, CHECK_WRITE, &before, sizeof before);
    struct tensor out = check_tensor(c, CHECK_WRITE, DTYPE_F32, ROWS, 0, losses);
    struct tensor weights = check_output(c, DTYPE_F32, ROWS, 0);
    CHECK_OP(c, policy, .losses = out.data, .weights = weights.data,
             .targets = check_memory(c, CHECK_READ, targets, sizeof targets),
             .old = input(c, &file, "old", ROWS), .sampled = input(c, &file, "old", ROWS),
             .reference = input(c, &file, "reference", ROWS), .batch = SEQUENCES, .length = LENGTH,
             .parts = check_memory(c, CHECK_WRITE, NULL, SEQUENCES * sizeof before), .sums = sums,
             .given = check_memory(c, CHECK_READ, batch, bytes), .rule = given->rule);
    if (c->verify) verify(c, given, &file, mask, &out, &weights, sums);
    free(mask);
    free(nll);
    free(advantages);
    free(batch);
    safetensors_close(&file);
}

Test(policy, clipped) {
    const struct policy_rule rule = {.low = 0.2f, .high = 0.2f, .delta = 1.4f, .beta = 0.1f};
    check_everywhere(body, &(const struct given){"clipped", rule});
}

Test(policy, sequence) {
    const struct policy_rule rule = {.sequence_level = true,
                                     .corrects_kl = true,
                                     .low = 0.05f,
                                     .high = 0.1f,
                                     .delta = INFINITY,
                                     .beta = 0.1f};
    check_everywhere(body, &(const struct given){"sequence", rule});
}

Test(policy, cispo) {
    const struct policy_rule rule = {
        .cispo = true, .corrects_kl = true, .high = 1.2f, .delta = INFINITY, .beta = 0.1f};
    check_everywhere(body, &(const struct given){"cispo", rule});
}
