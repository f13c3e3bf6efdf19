#include "model/lab/compare/comparison.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "data/util/table.h"

enum { WORDS_MAX = 64, REASON_MAX = 300 };

__attribute__((format(printf, 2, 3))) static bool explain(char reason[REASON_MAX],
                                                          const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, REASON_MAX, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- curves */

static bool usable(const struct run_validation *validation) {
    return isfinite(validation->loss) && isfinite(validation->tokens);
}

double tokens_to_loss(const struct run_record *run, double loss) {
    double lowest = INFINITY, before = NAN;
    for (int i = 0; i < arrlen(run->validations); i++) {
        const struct run_validation *validation = &run->validations[i];
        if (!usable(validation)) continue;
        double lower = fmin(lowest, validation->loss);
        if (lower == loss) return validation->tokens;
        if (lower < loss && isinf(lowest)) return NAN;
        if (lower < loss)
            return before + (validation->tokens - before) * (lowest - loss) / (lowest - lower);
        lowest = lower;
        before = validation->tokens;
    }
    return NAN;
}

/* Sets the lowest validation loss. Returns false with a reason if the curve has no use. */
static bool read_curve(double *lowest, const struct run_record *run, char reason[REASON_MAX]) {
    int count = 0;
    *lowest = INFINITY;
    for (int i = 0; i < arrlen(run->validations); i++) {
        if (!usable(&run->validations[i])) continue;
        count++;
        *lowest = fmin(*lowest, run->validations[i].loss);
    }
    if (arrlen(run->validations) > 0 && !isfinite(arrlast(run->validations).loss))
        return explain(reason, "the last validation loss of %s is not finite", run->path);
    if (count < EQUAL_LOSS_VALIDATIONS)
        return explain(reason, "%s has %d validation%s, fewer than %d (eval.every)", run->path,
                       count, PLURAL(count), EQUAL_LOSS_VALIDATIONS);
    if (arrlast(run->validations).loss < run->validations[0].loss) return true;
    return explain(reason, "the validation loss of %s ends no lower than it began", run->path);
}

/* ---- pairs */

/* Returns false with a reason if the groups validate on other text, or have other seeds. */
static bool comparable(const struct comparison *c, char reason[REASON_MAX]) {
    static const char *const begins[] = {"data.", "eval.batches"};
    struct run_group *both = NULL;
    bool same = c->same_seeds;
    if (!same) explain(reason, "there is no seed in common");
    arrput(both, *c->reference);
    arrput(both, *c->group);
    cJSON *differences = config_differences(both), *item;
    cJSON_ArrayForEach(item, differences) {
        const char *key = json_text_at(item, "key");
        for (size_t k = 0; k < sizeof begins / sizeof *begins; k++)
            if (strncmp(key, begins[k], strlen(begins[k])) == 0)
                same =
                    explain(reason, "%s differs, so validation losses may be of other text", key);
    }
    cJSON_Delete(differences);
    arrfree(both);
    return same;
}

/* Sets the target loss of a pair, and the tokens of each run to it. */
static bool read_pair(double *target, double tokens[COMPARE_SIDES], const struct run_pair *pair,
                      char reason[REASON_MAX]) {
    double lowest[COMPARE_SIDES];
    for (int side = 0; side < COMPARE_SIDES; side++)
        if (!read_curve(&lowest[side], pair->runs[side], reason)) return false;
    *target = fmax(lowest[COMPARE_REFERENCE], lowest[COMPARE_OTHER]);
    for (int side = 0; side < COMPARE_SIDES; side++) {
        tokens[side] = tokens_to_loss(pair->runs[side], *target);
        if (isnan(tokens[side]))
            return explain(reason, "%s is below %.4f at its first validation",
                           pair->runs[side]->path, *target);
    }
    return true;
}

static bool read_pairs(struct equal_loss *equal, const struct comparison *c,
                       char reason[REASON_MAX]) {
    int pairs = (int)arrlen(c->pairs);
    double target[pairs], tokens[pairs], speed[pairs], no_noise[pairs];
    if (!comparable(c, reason)) return false;
    for (int p = 0; p < pairs; p++) {
        double to[COMPARE_SIDES] = {NAN, NAN}, seconds[COMPARE_SIDES];
        if (!read_pair(&target[p], to, &c->pairs[p], reason)) return false;
        for (int side = 0; side < COMPARE_SIDES; side++)
            seconds[side] = to[side] / run_tokens_per_s(c->pairs[p].runs[side]);
        tokens[p] = 100 * (to[COMPARE_OTHER] / to[COMPARE_REFERENCE] - 1);
        speed[p] = 100 * (seconds[COMPARE_REFERENCE] / seconds[COMPARE_OTHER] - 1);
        no_noise[p] = NAN;
    }
    equal->loss = mean_of(target, pairs);
    equal->tokens = difference_of(tokens, no_noise, pairs);
    equal->speed = difference_of(speed, no_noise, pairs);
    return true;
}

/* ---- the sentence */

/* Writes a difference as "4.2 % (+-1.9) more", without a margin for a single pair, or "-" if it is
 * unknown. Returns words. */
static const char *difference_words(char words[WORDS_MAX], const struct difference *d,
                                    const char *more, const char *less) {
    char margin[24] = "";
    if (isnan(d->mean)) return "-";
    if (isfinite(d->margin)) snprintf(margin, sizeof margin, " (+-%.1f)", d->margin);
    snprintf(words, WORDS_MAX, "%.1f %%%s %s", fabs(d->mean), margin, d->mean < 0 ? less : more);
    return words;
}

void equal_loss_make(struct equal_loss *equal, const struct comparison *c) {
    const struct difference none = {.mean = NAN, .scatter = NAN, .noise = NAN, .margin = NAN};
    struct difference rate = none;
    char reason[REASON_MAX] = "", words[3][WORDS_MAX];
    *equal = (struct equal_loss){.loss = NAN, .tokens = none, .speed = none};
    rate.mean = 100 * (c->speed_up - 1);
    const char *faster = difference_words(words[0], &rate, "more", "fewer");
    if (read_pairs(equal, c, reason))
        snprintf(equal->text, sizeof equal->text,
                 "%s tokens/s, %s at equal loss (%.4f), which takes %s tokens%s", faster,
                 difference_words(words[1], &equal->speed, "faster", "slower"), equal->loss,
                 difference_words(words[2], &equal->tokens, "more", "fewer"),
                 arrlen(c->pairs) == 1 ? "; one seed: noise unknown" : "");
    else
        snprintf(equal->text, sizeof equal->text, "%s tokens/s, - at equal loss: %s", faster,
                 reason);
}
