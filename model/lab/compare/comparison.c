#include "model/lab/compare/comparison.h"

#include <math.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

enum { WINDOW_LEAST = 10, WARM_STEPS = 10 };

/* ---- pairs of runs, common steps */

static void add_pair(struct comparison *c, const struct run_record *reference,
                     const struct run_record *other) {
    struct run_pair pair = {.runs = {reference, other}};
    arrput(c->pairs, pair);
}

static void pair_runs(struct comparison *c) {
    const struct run_group *a = c->reference, *b = c->group;
    c->same_seeds = true;
    for (int i = 0; i < arrlen(a->runs); i++)
        for (int k = 0; k < arrlen(b->runs); k++)
            if (a->runs[i]->seed == b->runs[k]->seed) add_pair(c, a->runs[i], b->runs[k]);
    if (arrlen(c->pairs) > 0) return;
    c->same_seeds = false;
    for (int i = 0; i < arrlen(a->runs) && i < arrlen(b->runs); i++)
        add_pair(c, a->runs[i], b->runs[i]);
}

/* Moves *at forward to the given step. Returns false if the run does not have it. */
static bool find_step(const struct run_record *run, int *at, int64_t step) {
    while (*at < arrlen(run->steps) && run->steps[*at].step < step) ++*at;
    return *at < arrlen(run->steps) && run->steps[*at].step == step;
}

/* Counts the norms of a step. Returns true if both norms are usable. A ratio needs a reference
 * above 0. The other norm may be 0, as when all gradients underflow in 16 bit: the worst fault must
 * not be left out. */
static bool count_norms(struct run_pair *pair, const struct run_step *reference,
                        const struct run_step *other) {
    if (reference->skipped || other->skipped) return false;
    if (!isfinite(reference->gradient_norm) || reference->gradient_norm <= 0) return false;
    bool usable = isfinite(other->gradient_norm) && other->gradient_norm >= 0;
    pair->norms_not_finite += !isfinite(other->gradient_norm);
    pair->norms_zero += usable && other->gradient_norm == 0;
    return usable;
}

static void add_step(struct run_pair *pair, const struct run_step *const both[COMPARE_SIDES]) {
    bool losses = isfinite(both[0]->loss) && isfinite(both[1]->loss);
    bool norms = count_norms(pair, both[COMPARE_REFERENCE], both[COMPARE_OTHER]);
    for (int side = 0; side < COMPARE_SIDES; side++) {
        arrput(pair->loss[side], losses ? both[side]->loss : NAN);
        arrput(pair->norm[side], norms ? both[side]->gradient_norm : NAN);
    }
}

/* Collects the steps that all runs have, by walking through all runs in parallel. */
static void align(struct comparison *c) {
    int pairs = (int)arrlen(c->pairs), (*at)[COMPARE_SIDES] = NULL;
    const struct run_record *first = c->pairs[0].runs[COMPARE_REFERENCE];
    arrsetlen(at, (size_t)pairs);
    for (int p = 0; p < pairs; p++) at[p][0] = at[p][1] = 0;
    for (int i = 0; i < arrlen(first->steps); i++) {
        int64_t step = first->steps[i].step;
        bool common = true;
        for (int p = 0; p < pairs; p++)
            for (int side = 0; side < COMPARE_SIDES; side++)
                common = find_step(c->pairs[p].runs[side], &at[p][side], step) && common;
        if (!common) continue;
        arrput(c->step, (double)step);
        for (int p = 0; p < pairs; p++) {
            const struct run_pair *pair = &c->pairs[p];
            const struct run_step *both[COMPARE_SIDES] = {&pair->runs[0]->steps[at[p][0]],
                                                          &pair->runs[1]->steps[at[p][1]]};
            add_step(&c->pairs[p], both);
        }
    }
    arrfree(at);
    c->steps = (int)arrlen(c->step);
}

/* ---- losses */

static double percent_of(double other, double reference) {
    return 100 * (other / reference - 1);
}

/* Returns the mean over the last `window` values, or NaN if less than half of them are finite. */
static double final_mean(const double *values, int count, int window) {
    if (window > count) window = count;
    int finite = 0;
    for (int i = count - window; i < count; i++) finite += isfinite(values[i]) != 0;
    return 2 * finite >= window ? mean_of(values + count - window, window) : NAN;
}

/* Returns the difference of a figure, given for each pair, and sets the means of both sides. */
static struct difference compare_pairs(double means[COMPARE_SIDES], int pairs,
                                       double figures[COMPARE_SIDES][pairs]) {
    double percent[pairs];
    for (int p = 0; p < pairs; p++)
        percent[p] = percent_of(figures[COMPARE_OTHER][p], figures[COMPARE_REFERENCE][p]);
    for (int side = 0; side < COMPARE_SIDES; side++) means[side] = mean_of(figures[side], pairs);
    return difference_of(percent, figures[COMPARE_REFERENCE], pairs);
}

/* Returns the validation after a step, or NULL. */
static const struct run_validation *find_validation(const struct run_record *run, int64_t step) {
    for (int i = 0; i < arrlen(run->validations); i++)
        if (run->validations[i].step == step) return &run->validations[i];
    return NULL;
}

static bool all_validated(const struct comparison *c, int64_t step) {
    for (int p = 0; p < arrlen(c->pairs); p++)
        for (int side = 0; side < COMPARE_SIDES; side++)
            if (!find_validation(c->pairs[p].runs[side], step)) return false;
    return true;
}

static int64_t last_common_validation(const struct comparison *c) {
    const struct run_record *first = c->pairs[0].runs[COMPARE_REFERENCE];
    for (ptrdiff_t i = arrlen(first->validations) - 1; i >= 0; i--)
        if (all_validated(c, first->validations[i].step)) return first->validations[i].step;
    return -1;
}

/* ---- curves */

/* Adds the means of all pairs at step i: NaN unless all have a value, so that the curve has no
 * jumps. */
static void add_means(struct comparison *c, int i) {
    double sums[COMPARE_SIDES] = {0, 0}, percent = 0, pairs = (double)arrlen(c->pairs);
    for (int p = 0; p < arrlen(c->pairs); p++) {
        double *const *smoothed = c->pairs[p].smoothed;
        for (int side = 0; side < COMPARE_SIDES; side++) sums[side] += smoothed[side][i];
        percent += percent_of(smoothed[COMPARE_OTHER][i], smoothed[COMPARE_REFERENCE][i]);
    }
    for (int side = 0; side < COMPARE_SIDES; side++) arrput(c->smoothed[side], sums[side] / pairs);
    arrput(c->percent, percent / pairs);
}

static double *smoothed_of(const double *values, int count, int window) {
    double *smoothed = NULL;
    arrsetlen(smoothed, (size_t)count);
    smooth(smoothed, values, count, window);
    return smoothed;
}

/* Smooths the losses of all pairs. Sets the index of the step after `settled` at which the mean
 * difference is largest, in absolute value and in value; -1: there is no such step. */
static void smooth_losses(struct comparison *c, int *farthest, int *highest) {
    *farthest = *highest = -1;
    for (int p = 0; p < arrlen(c->pairs); p++)
        for (int side = 0; side < COMPARE_SIDES; side++)
            c->pairs[p].smoothed[side] = smoothed_of(c->pairs[p].loss[side], c->steps, c->window);
    for (int i = 0; i < c->steps; i++) {
        add_means(c, i);
        if (c->step[i] <= c->settled || !isfinite(c->percent[i])) continue;
        if (*farthest < 0 || fabs(c->percent[i]) > fabs(c->percent[*farthest])) *farthest = i;
        if (*highest < 0 || c->percent[i] > c->percent[*highest]) *highest = i;
    }
    c->curve_step = *farthest < 0 ? NAN : c->step[*farthest];
    c->curve_highest_step = *highest < 0 ? NAN : c->step[*highest];
}

static void compare_losses(struct comparison *c) {
    int pairs = (int)arrlen(c->pairs), farthest, highest;
    double training[COMPARE_SIDES][pairs], validation[COMPARE_SIDES][pairs];
    double curve[COMPARE_SIDES][pairs], above[COMPARE_SIDES][pairs], ignored[COMPARE_SIDES];
    smooth_losses(c, &farthest, &highest);
    c->validation_step = last_common_validation(c);
    for (int side = 0; side < COMPARE_SIDES; side++)
        for (int p = 0; p < pairs; p++) {
            const struct run_pair *pair = &c->pairs[p];
            const struct run_validation *found =
                find_validation(pair->runs[side], c->validation_step);
            training[side][p] = final_mean(pair->loss[side], c->steps, c->window);
            validation[side][p] = found ? found->loss : NAN;
            curve[side][p] = farthest < 0 ? NAN : pair->smoothed[side][farthest];
            above[side][p] = highest < 0 ? NAN : pair->smoothed[side][highest];
        }
    c->training = compare_pairs(c->training_loss, pairs, training);
    c->validation = compare_pairs(c->validation_loss, pairs, validation);
    c->curve = compare_pairs(ignored, pairs, curve);
    c->curve_highest = compare_pairs(ignored, pairs, above);
}

/* ---- gradient norms */

static double smoothed_correlation(double *const logarithms[COMPARE_SIDES], int steps, int window) {
    if (steps < COMPARE_WINDOWS_LEAST * window) return NAN;
    double *a = smoothed_of(logarithms[0], steps, window);
    double *b = smoothed_of(logarithms[1], steps, window);
    double correlation = correlation_of(a, b, steps);
    arrfree(a);
    arrfree(b);
    return correlation;
}

static void compare_norms(struct comparison *c) {
    int pairs = (int)arrlen(c->pairs);
    double single[pairs], smoothed[pairs], median[pairs], log_ratio[pairs], level[pairs];
    for (int p = 0; p < pairs; p++) {
        const struct run_pair *pair = &c->pairs[p];
        const double *a = pair->norm[COMPARE_REFERENCE], *b = pair->norm[COMPARE_OTHER];
        double *ratios = NULL, *levels = NULL, *logarithms[COMPARE_SIDES] = {NULL, NULL};
        for (int i = 0; i < c->steps; i++) {
            bool zero = b[i] == 0; /* no logarithm, so the step is left out on both sides */
            arrput(ratios, b[i] / a[i]);
            arrput(levels, log(a[i]));
            for (int side = 0; side < COMPARE_SIDES; side++)
                arrput(logarithms[side], zero ? NAN : log(pair->norm[side][i]));
            c->norm_steps += isfinite(a[i]) != 0;
        }
        c->norms_not_finite += pair->norms_not_finite;
        c->norms_zero += pair->norms_zero;
        single[p] = correlation_of(a, b, c->steps);
        smoothed[p] = smoothed_correlation(logarithms, c->steps, c->window);
        median[p] = percent_of(median_of(ratios, c->steps), 1);
        log_ratio[p] = mean_of(logarithms[COMPARE_OTHER], c->steps) -
                       mean_of(logarithms[COMPARE_REFERENCE], c->steps);
        level[p] = exp(mean_of(levels, c->steps));
        arrfree(ratios);
        arrfree(levels);
        for (int side = 0; side < COMPARE_SIDES; side++) arrfree(logarithms[side]);
    }
    c->norm_correlation = mean_of(single, pairs);
    c->norm_smoothed_correlation = mean_of(smoothed, pairs);
    c->norm_ratio = exp(mean_of(log_ratio, pairs));
    c->norm = difference_of(median, level, pairs);
    c->norm_median = 1 + c->norm.mean / 100;
}

/* ---- figures of a group */

/* Appends the speeds of a run's steps after the first. */
static void add_speeds(double **speeds, const struct run_record *run) {
    int count = (int)arrlen(run->steps), warm = count > 2 * WARM_STEPS ? WARM_STEPS : count / 2;
    for (int i = warm; i < count; i++) arrput(*speeds, run->steps[i].tokens_per_s);
}

double run_tokens_per_s(const struct run_record *run) {
    double *speeds = NULL;
    add_speeds(&speeds, run);
    double median = median_of(speeds, (int)arrlen(speeds));
    arrfree(speeds);
    return median;
}

static struct group_figures group_figures_of(const struct run_group *group) {
    struct group_figures figures = {
        .planned_steps = INT64_MAX, .last_step = INT64_MAX, .memory_bytes = NAN};
    double *speeds = NULL;
    for (int r = 0; r < arrlen(group->runs); r++) {
        const struct run_record *run = group->runs[r];
        int64_t last = run_record_last_step(run);
        if (last < figures.last_step) figures.last_step = last;
        if (run->planned_steps < figures.planned_steps) figures.planned_steps = run->planned_steps;
        add_speeds(&speeds, run);
        for (int i = 0; i < arrlen(run->steps); i++) {
            const struct run_step *step = &run->steps[i];
            bool search = step->step <= COMPARE_SEARCH_STEPS;
            bool finite = isfinite(step->loss) && isfinite(step->gradient_norm);
            figures.steps++;
            figures.searched += search;
            figures.skipped += step->skipped;
            figures.skipped_in_search += search && step->skipped;
            figures.not_finite += !step->skipped && !finite;
            figures.memory_bytes = fmax(figures.memory_bytes, step->memory_bytes);
        }
    }
    figures.tokens_per_s = median_of(speeds, (int)arrlen(speeds));
    for (int i = 0; i < 2; i++)
        figures.tokens_per_s_quartiles[i] =
            quantile_of(speeds, (int)arrlen(speeds), 0.25 + 0.5 * i);
    arrfree(speeds);
    return figures;
}

/* ---- comparison */

static double settled_after(const struct comparison *c) {
    int64_t warmup = 0;
    const struct run_record *run = c->pairs[0].runs[COMPARE_REFERENCE];
    json_whole(&warmup, json_member(run->config.root, "optimizer"), "warmup_steps", 0, INT32_MAX);
    return fmax((double)warmup, 0.1 * c->step[c->steps - 1]);
}

/* True if a key of the optimizer differs that both configs have. The types of its moments and
 * operands are arithmetic, not another optimizer. */
static bool has_other_optimizer(const struct run_record *a, const struct run_record *b) {
    const cJSON *other = json_member(b->config.root, "optimizer"), *member;
    cJSON_ArrayForEach(member, json_member(a->config.root, "optimizer")) {
        const cJSON *value = json_member(other, member->string);
        bool arithmetic = strcmp(member->string, "moments") == 0 ||
                          strstr(member->string, "8bit") ||
                          strcmp(member->string, "newton_schulz_dtype") == 0;
        if (value && !arithmetic && !cJSON_Compare(member, value, true)) return true;
    }
    return false;
}

static bool differs(const struct run_record *a, const struct run_record *b, const char *block,
                    const char *key) {
    const cJSON *x = json_member(a->config.root, block), *y = json_member(b->config.root, block);
    if (key) x = json_member(x, key), y = json_member(y, key);
    return (x || y) && !(x && y && cJSON_Compare(x, y, true));
}

int comparison_make(struct comparison *c, const struct run_group *reference,
                    const struct run_group *group, struct error *error) {
    *c = (struct comparison){.reference = reference, .group = group};
    pair_runs(c);
    align(c);
    c->other_optimizer = has_other_optimizer(reference->runs[0], group->runs[0]);
    const struct run_record *a = reference->runs[0], *b = group->runs[0];
    c->other_validation = differs(a, b, "train", "objective") || differs(a, b, "objective", NULL);
    c->other_objective = c->other_validation || differs(a, b, "distill", NULL);
    if (c->steps == 0) {
        comparison_free(c);
        return fail(error, "%s and %s have no step in common", reference->label, group->label);
    }
    c->window = c->steps / 20 > WINDOW_LEAST ? c->steps / 20 : WINDOW_LEAST;
    c->settled = settled_after(c);
    compare_losses(c);
    compare_norms(c);
    struct group_figures base = group_figures_of(reference);
    c->figures = group_figures_of(group);
    c->speed_up = c->figures.tokens_per_s / base.tokens_per_s;
    c->memory_saving = 100 * (1 - c->figures.memory_bytes / base.memory_bytes);
    return 0;
}

void comparison_free(struct comparison *c) {
    for (int p = 0; p < arrlen(c->pairs); p++) {
        for (int side = 0; side < COMPARE_SIDES; side++) {
            arrfree(c->pairs[p].loss[side]);
            arrfree(c->pairs[p].norm[side]);
            arrfree(c->pairs[p].smoothed[side]);
        }
    }
    arrfree(c->pairs);
    for (int side = 0; side < COMPARE_SIDES; side++) arrfree(c->smoothed[side]);
    arrfree(c->percent);
    arrfree(c->step);
    *c = (struct comparison){0};
}
