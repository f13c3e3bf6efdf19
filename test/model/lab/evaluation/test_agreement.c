#include "model/lab/evaluation/run_agreement.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/table.h"

enum { VOCABULARY = 4 };

struct pair {
    const float *sampler, *trainer; /* logits */
    int token;
};

/* Expects figures of predictions. */
static void expect(const struct pair *pairs, int count, double mean, double median, double largest,
                   double kl, double rank_changed, double same_bits) {
    struct agreement agreement = {0};
    cJSON *row = cJSON_CreateObject();
    const char *const paths[] = {"mean", "median", "largest", "kl", "rank_changed", "same_bits"};
    const double expected[] = {mean, median, largest, kl, rank_changed, same_bits};
    for (int i = 0; i < count; i++)
        agreement_add(&agreement, pairs[i].sampler, pairs[i].trainer, VOCABULARY, pairs[i].token);
    agreement_report(row, &agreement);
    for (int i = 0; i < 6; i++) {
        double got = json_at(row, paths[i])->valuedouble;
        cr_expect(got == expected[i] || fabs(got - expected[i]) < 1e-6, "%s: %g, expected %g",
                  paths[i], got, expected[i]);
    }
    arrfree(agreement.differences);
    cJSON_Delete(row);
}

Test(agreement, of_equal_predictions) {
    const float logits[VOCABULARY] = {1, -INFINITY, 3, 0};
    const struct pair pairs[] = {{logits, logits, 2}, {logits, logits, 0}};
    expect(pairs, 2, 0, 0, 0, 0, 0, 1);
}

/* P of the sampler: 1/2, 1/4, 1/8, 1/8; of the trainer: 1/4, 1/2, 1/8, 1/8. A constant added to all
 * logits changes the bits but no probability. */
Test(agreement, of_known_predictions) {
    const float sampler[VOCABULARY] = {logf(4), logf(2), 0, 0};
    const float trainer[VOCABULARY] = {logf(2), logf(4), 0, 0};
    const float shifted[VOCABULARY] = {logf(4) + 1, logf(2) + 1, 1, 1};
    const struct pair pairs[] = {{sampler, trainer, 0}, /* log 2 apart, rank 0 and 1 */
                                 {sampler, trainer, 3}, /* the same */
                                 {sampler, trainer, 1}, /* log 2 apart, rank 1 and 0 */
                                 {sampler, shifted, 0}};
    expect(pairs, 4, log(2) / 2, 0, log(2), 3 * (0.5 - 0.25) * log(2) / 4, 0.5, 0);
}

/* Another token is above it, but as many as before. */
Test(agreement, a_rank_counts_the_tokens_above) {
    const float sampler[VOCABULARY] = {3, 2, 1, 0}, trainer[VOCABULARY] = {1, 2, 3, 0};
    const struct pair pair = {sampler, trainer, 1};
    double kl = 2 * (exp(3) - exp(1)) / (1 + exp(1) + exp(2) + exp(3));
    expect(&pair, 1, 0, 0, 0, kl, 0, 0);
}

Test(agreement, a_token_that_the_trainer_excludes_is_infinitely_far) {
    const float sampler[VOCABULARY] = {0, 0, 0, 0}, trainer[VOCABULARY] = {0, 0, 0, -INFINITY};
    const struct pair pair = {sampler, trainer, 3};
    expect(&pair, 1, INFINITY, INFINITY, INFINITY, INFINITY, 1, 0);
}

/* Recipes are a key of fp8, while nvfp4 has a scale of the tensor always. */
Test(agreement, advice_is_of_the_precision) {
    static const struct {
        const char *name, *advice;
        bool exact;
    } cases[] = {{"fp8",
                  "; scales of whole tensors depend on all tokens of a batch: try "
                  "fp8.recipe=row or mxfp8",
                  false},
                 {"nvfp4",
                  "; scales of whole tensors depend on all tokens of a batch: try "
                  "mxfp4 or mxfp8",
                  true},
                 {"bf16", "; try sample.exact", false},
                 {"mxfp8", "", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text, expected[300], line[300] = "";
        size_t size;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", cases[i].name);
        cJSON_AddNumberToObject(row, "kl", 0.5);
        FILE *out = open_memstream(&text, &size);
        agreement_print(out, row, cases[i].exact);
        fclose(out);
        for (char *left = text, *word; (word = strsep(&left, " \n"));)
            if (*word) snprintf(line + strlen(line), sizeof line - strlen(line), " %s", word);
        snprintf(expected, sizeof expected, " %s: not for on-policy training (KL above 0.01)%s",
                 cases[i].name, cases[i].advice);
        cr_expect_str_eq(line, expected, "%s", line);
        free(text);
        cJSON_Delete(row);
    }
}
