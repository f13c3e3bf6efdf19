#include "model/lab/compare/comparison.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

enum { WINDOW_LEAST = 10, WARM_STEPS = 10 };

/* ---- which runs, which steps */

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

/* Moves *at to the run's line of the step, if there is one. */
static bool find_step(const struct run_record *run, int *at, int64_t step) {
    while (*at < arrlen(run->steps) && run->steps[*at].step < step) ++*at;
    return *at < arrlen(run->steps) && run->steps[*at].step == step;
}

/* A ratio needs a reference above 0. The other's norm may be 0: that is what gradients that 16 bit
 * has lost look like, and leaving it out would hide the worst of faults. */
static bool take_norms(struct run_pair *pair, const struct run_step *reference,
                       const struct run_step *other) {
    if (reference->skipped || other->skipped) return false;
    if (!isfinite(reference->gradient_norm) || reference->gradient_norm <= 0) return false;
    bool there = isfinite(other->gradient_norm) && other->gradient_norm >= 0;
    pair->norms_lost += !isfinite(other->gradient_norm);
    pair->norms_zero += there && other->gradient_norm == 0;
    return there;
}

static void add_step(struct run_pair *pair, const struct run_step *const both[COMPARE_SIDES]) {
    bool losses = isfinite(both[0]->loss) && isfinite(both[1]->loss);
    bool norms = take_norms(pair, both[COMPARE_REFERENCE], both[COMPARE_OTHER]);
    for (int side = 0; side < COMPARE_SIDES; side++) {
        arrput(pair->loss[side], losses ? both[side]->loss : NAN);
        arrput(pair->norm[side], norms ? both[side]->gradient_norm : NAN);
    }
}

/* Walks all runs at once, so that a step counts where every one of them has it. */
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

/* A mean of less than half of the values would be of other steps than it claims. */
static double final_mean(const double *values, int count, int window) {
    if (window > count) window = count;
    int finite = 0;
    for (int i = count - window; i < count; i++) finite += isfinite(values[i]) != 0;
    return 2 * finite >= window ? mean_of(values + count - window, window) : NAN;
}

static void compare_final(struct comparison *c) {
    double *percent = NULL, *losses[COMPARE_SIDES] = {NULL, NULL};
    int pairs = (int)arrlen(c->pairs);
    for (int p = 0; p < pairs; p++) {
        for (int side = 0; side < COMPARE_SIDES; side++)
            arrput(losses[side], final_mean(c->pairs[p].loss[side], c->steps, c->window));
        arrput(percent, percent_of(losses[COMPARE_OTHER][p], losses[COMPARE_REFERENCE][p]));
    }
    c->training = difference_of(percent, losses[COMPARE_REFERENCE], pairs);
    for (int side = 0; side < COMPARE_SIDES; side++) {
        c->training_loss[side] = mean_of(losses[side], pairs);
        arrfree(losses[side]);
    }
    arrfree(percent);
}

/* The loss of the validation after a step; false when there was none. */
static bool validation_at(double *loss, const struct run_record *run, int64_t step) {
    for (ptrdiff_t i = arrlen(run->validations) - 1; i >= 0; i--)
        if (run->validations[i].step == step) {
            *loss = run->validations[i].loss;
            return true;
        }
    return false;
}

static bool all_validated(const struct comparison *c, int64_t step) {
    double ignored;
    for (int p = 0; p < arrlen(c->pairs); p++)
        for (int side = 0; side < COMPARE_SIDES; side++)
            if (!validation_at(&ignored, c->pairs[p].runs[side], step)) return false;
    return true;
}

static void compare_validation(struct comparison *c) {
    const struct run_record *first = c->pairs[0].runs[COMPARE_REFERENCE];
    double *percent = NULL, *losses[COMPARE_SIDES] = {NULL, NULL};
    int pairs = (int)arrlen(c->pairs);
    c->validation_step = -1;
    for (ptrdiff_t i = arrlen(first->validations) - 1; i >= 0 && c->validation_step < 0; i--)
        if (all_validated(c, first->validations[i].step))
            c->validation_step = first->validations[i].step;
    for (int p = 0; p < pairs; p++) {
        double both[COMPARE_SIDES] = {NAN, NAN};
        for (int side = 0; side < COMPARE_SIDES; side++) {
            validation_at(&both[side], c->pairs[p].runs[side], c->validation_step);
            arrput(losses[side], both[side]);
        }
        arrput(percent, percent_of(both[COMPARE_OTHER], both[COMPARE_REFERENCE]));
    }
    c->validation = difference_of(percent, losses[COMPARE_REFERENCE], pairs);
    for (int side = 0; side < COMPARE_SIDES; side++) {
        c->validation_loss[side] = mean_of(losses[side], pairs);
        arrfree(losses[side]);
    }
    arrfree(percent);
}

/* ---- curves */

static void smooth_pair(struct run_pair *pair, int steps, int window) {
    for (int side = 0; side < COMPARE_SIDES; side++) {
        arrsetlen(pair->smoothed[side], (size_t)steps);
        smooth(pair->smoothed[side], pair->loss[side], steps, window);
    }
    for (int i = 0; i < steps; i++)
        arrput(pair->percent,
               percent_of(pair->smoothed[COMPARE_OTHER][i], pair->smoothed[COMPARE_REFERENCE][i]));
}

/* The mean of all pairs where all have a value, so that the curve has no jumps. */
static double mean_over_pairs(const struct comparison *c, int i, int what) {
    double sum = 0;
    for (int p = 0; p < arrlen(c->pairs); p++) {
        const struct run_pair *pair = &c->pairs[p];
        sum += what < COMPARE_SIDES ? pair->smoothed[what][i] : pair->percent[i];
    }
    return sum / (double)arrlen(c->pairs);
}

/* at -1: there is no such step. */
static struct difference difference_at(const struct comparison *c, int at) {
    double *percent = NULL, *reference = NULL;
    int pairs = (int)arrlen(c->pairs);
    for (int p = 0; p < pairs; p++) {
        arrput(percent, at < 0 ? NAN : c->pairs[p].percent[at]);
        arrput(reference, at < 0 ? NAN : c->pairs[p].smoothed[COMPARE_REFERENCE][at]);
    }
    struct difference difference = difference_of(percent, reference, pairs);
    arrfree(percent);
    arrfree(reference);
    return difference;
}

static void compare_curves(struct comparison *c) {
    int farthest = -1, highest = -1;
    for (int p = 0; p < arrlen(c->pairs); p++) smooth_pair(&c->pairs[p], c->steps, c->window);
    for (int i = 0; i < c->steps; i++) {
        for (int side = 0; side < COMPARE_SIDES; side++)
            arrput(c->smoothed[side], mean_over_pairs(c, i, side));
        arrput(c->percent, mean_over_pairs(c, i, COMPARE_SIDES));
        if (c->step[i] <= c->settled || !isfinite(c->percent[i])) continue;
        if (farthest < 0 || fabs(c->percent[i]) > fabs(c->percent[farthest])) farthest = i;
        if (highest < 0 || c->percent[i] > c->percent[highest]) highest = i;
    }
    c->curve = difference_at(c, farthest);
    c->curve_highest = difference_at(c, highest);
    c->curve_step = farthest < 0 ? NAN : c->step[farthest];
    c->curve_highest_step = highest < 0 ? NAN : c->step[highest];
}

/* ---- gradient norms */

struct norm_figures {
    int steps;
    double correlation, smoothed_correlation, median, geometric, reference_level;
};

static double smoothed_correlation(double *const logarithms[COMPARE_SIDES], int steps, int window) {
    double *smoothed[COMPARE_SIDES] = {NULL, NULL};
    if (steps < COMPARE_WINDOWS_LEAST * window) return NAN;
    for (int side = 0; side < COMPARE_SIDES; side++) {
        arrsetlen(smoothed[side], (size_t)steps);
        smooth(smoothed[side], logarithms[side], steps, window);
    }
    double correlation = correlation_of(smoothed[0], smoothed[1], steps);
    arrfree(smoothed[0]);
    arrfree(smoothed[1]);
    return correlation;
}

static struct norm_figures norm_figures_of(const struct run_pair *pair, int steps, int window) {
    const double *a = pair->norm[COMPARE_REFERENCE], *b = pair->norm[COMPARE_OTHER];
    double *ratios = NULL, *changes = NULL, *logarithms[COMPARE_SIDES] = {NULL, NULL};
    double *levels = NULL;
    struct norm_figures figures = {.correlation = correlation_of(a, b, steps)};
    for (int i = 0; i < steps; i++) {
        bool zero = b[i] == 0; /* has no logarithm; left out in both, as what is missing is */
        arrput(ratios, b[i] / a[i]);
        arrput(levels, log(a[i]));
        arrput(changes, zero ? NAN : log(b[i] / a[i]));
        for (int side = 0; side < COMPARE_SIDES; side++)
            arrput(logarithms[side], zero ? NAN : log(pair->norm[side][i]));
        figures.steps += isfinite(a[i]) != 0;
    }
    figures.smoothed_correlation = smoothed_correlation(logarithms, steps, window);
    figures.median = median_of(ratios, steps);
    figures.geometric = exp(mean_of(changes, steps));
    figures.reference_level = exp(mean_of(levels, steps));
    arrfree(levels);
    arrfree(ratios);
    arrfree(changes);
    arrfree(logarithms[0]);
    arrfree(logarithms[1]);
    return figures;
}

static void compare_norms(struct comparison *c) {
    double *correlations = NULL, *smoothed = NULL, *ratios = NULL, *percent = NULL, *levels = NULL;
    int pairs = (int)arrlen(c->pairs);
    for (int p = 0; p < pairs; p++) {
        struct norm_figures figures = norm_figures_of(&c->pairs[p], c->steps, c->window);
        c->norm_steps += figures.steps;
        c->norms_lost += c->pairs[p].norms_lost;
        c->norms_zero += c->pairs[p].norms_zero;
        arrput(correlations, figures.correlation);
        arrput(smoothed, figures.smoothed_correlation);
        arrput(ratios, log(figures.geometric));
        arrput(percent, percent_of(figures.median, 1));
        arrput(levels, figures.reference_level);
    }
    c->norm_correlation = mean_of(correlations, pairs);
    c->norm_smoothed_correlation = mean_of(smoothed, pairs);
    c->norm_ratio = exp(mean_of(ratios, pairs));
    c->norm = difference_of(percent, levels, pairs);
    arrfree(correlations);
    arrfree(smoothed);
    arrfree(ratios);
    arrfree(percent);
    arrfree(levels);
}

/* ---- a group by itself */

static void add_scale_path(struct group_figures *figures, const struct run_record *run) {
    double last = NAN;
    bool scaled = false;
    figures->scale_first = figures->scale_last = NAN;
    figures->scale_smallest = figures->scale_largest = NAN;
    for (int i = 0; i < arrlen(run->steps); i++) {
        double scale = run->steps[i].loss_scale;
        if (!isfinite(scale)) continue;
        scaled = scaled || scale != 1;
        figures->scale_changes += isfinite(last) && scale != last;
        if (isnan(last)) figures->scale_first = scale;
        figures->scale_smallest = fmin(figures->scale_smallest, scale);
        figures->scale_largest = fmax(figures->scale_largest, scale);
        figures->scale_last = last = scale;
    }
    if (scaled) return;
    figures->scale_first = figures->scale_last = NAN;
    figures->scale_smallest = figures->scale_largest = NAN;
}

static void add_run(struct group_figures *figures, const struct run_record *run) {
    int64_t last = run_record_last_step(run);
    if (figures->steps == 0 || last < figures->last_step) figures->last_step = last;
    if (figures->steps == 0 || run->planned_steps < figures->planned_steps)
        figures->planned_steps = run->planned_steps;
    for (int i = 0; i < arrlen(run->steps); i++) {
        const struct run_step *step = &run->steps[i];
        bool search = step->step <= COMPARE_SEARCH_STEPS;
        figures->steps++;
        figures->searched += search;
        figures->skipped += step->skipped;
        figures->skipped_in_search += search && step->skipped;
        figures->lost += !step->skipped && !(isfinite(step->loss) && isfinite(step->gradient_norm));
        figures->memory_bytes = fmax(figures->memory_bytes, step->memory_bytes);
    }
}

static struct group_figures group_figures_of(const struct run_group *group) {
    struct group_figures figures = {.memory_bytes = NAN};
    double *speeds = NULL;
    for (int r = 0; r < arrlen(group->runs); r++) {
        const struct run_record *run = group->runs[r];
        add_run(&figures, run);
        int count = (int)arrlen(run->steps), warm = count > 2 * WARM_STEPS ? WARM_STEPS : count / 2;
        for (int i = warm; i < count; i++) arrput(speeds, run->steps[i].tokens_per_s);
    }
    add_scale_path(&figures, group->runs[0]);
    figures.tokens_per_s = median_of(speeds, (int)arrlen(speeds));
    arrfree(speeds);
    return figures;
}

/* ---- all of it */

static double settled_after(const struct comparison *c) {
    int64_t warmup = 0;
    const struct run_record *run = c->pairs[0].runs[COMPARE_REFERENCE];
    json_whole(&warmup, json_member(run->config.root, "optimizer"), "warmup_steps", 0, INT32_MAX);
    return fmax((double)warmup, 0.1 * c->step[c->steps - 1]);
}

int comparison_make(struct comparison *c, const struct run_group *reference,
                    const struct run_group *group, struct error *error) {
    *c = (struct comparison){.reference = reference, .group = group};
    pair_runs(c);
    align(c);
    if (c->steps == 0) {
        comparison_free(c);
        return fail(error, "%s and %s have no step in common", reference->label, group->label);
    }
    c->window = c->steps / 20 > WINDOW_LEAST ? c->steps / 20 : WINDOW_LEAST;
    c->settled = settled_after(c);
    compare_final(c);
    compare_validation(c);
    compare_curves(c);
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
        arrfree(c->pairs[p].percent);
    }
    arrfree(c->pairs);
    for (int side = 0; side < COMPARE_SIDES; side++) arrfree(c->smoothed[side]);
    arrfree(c->percent);
    arrfree(c->step);
    *c = (struct comparison){0};
}
