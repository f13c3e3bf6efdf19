#include "model/lab/compare/verdict.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

const char *check_outcome_name(enum check_outcome outcome) {
    static const char *const words[] = {"pass", "fail", "noise", "nothing", "ranked"};
    return words[outcome];
}

__attribute__((format(printf, 5, 6))) static void set(struct check *check,
                                                      enum check_outcome outcome, double value,
                                                      double limit, const char *format, ...) {
    va_list arguments;
    check->outcome = outcome;
    check->value = value;
    check->limit = limit;
    va_start(arguments, format);
    vsnprintf(check->text, sizeof check->text, format, arguments);
    va_end(arguments);
}

__attribute__((format(printf, 2, 3))) static void set_rule(struct check *check, const char *format,
                                                           ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(check->rule, sizeof check->rule, format, arguments);
    va_end(arguments);
}

/* Sets a rule that limits the difference of a loss from the reference's. */
static void set_loss_rule(struct check *check, const char *before, double limit, const char *behind,
                          const struct limits *limits) {
    set_rule(check, "%s %s %g %% %s the reference%s", before,
             limits->lower_is_fine ? "at most" : "within", limit,
             limits->lower_is_fine ? "above" : "of", behind);
}

/* Writes the margin of a difference and if it is real; "" for a single seed. Returns words. */
static const char *noise_words(char words[64], const struct difference *difference) {
    words[0] = 0;
    if (difference->count > 1 && isfinite(difference->mean))
        snprintf(words, 64, ", %s: seeds give or take %.2g %%",
                 difference->real ? "real" : "within noise", difference->margin);
    return words;
}

/* Returns the outcome for a difference in %. The limit applies to its absolute value, or to its
 * value if one_sided. */
static enum check_outcome judge(const struct difference *difference, double limit, bool one_sided) {
    double size = one_sided ? difference->mean : fabs(difference->mean);
    assert(!isnan(size));
    if (size <= limit) return CHECK_PASS;
    return difference->count > 1 && !difference->real ? CHECK_NOISE : CHECK_FAIL;
}

bool verdict_computed_in_fp32(const struct run_group *group) {
    const struct run_record *run = group->runs[0];
    return run->in_fp32 && strcmp(run->precision, "fp32") != 0;
}

/* Fails if a 16-bit group computed in fp32: its agreement with fp32 would prove nothing. */
static void check_format(struct check *check, const struct comparison *c,
                         const struct limits *limits) {
    (void)limits;
    set_rule(check, "it computed in the precision that its config names");
    if (verdict_computed_in_fp32(c->group))
        set(check, CHECK_FAIL, NAN, NAN, "fp32 everywhere, for autocast.enabled is false");
    else set(check, CHECK_PASS, NAN, NAN, "%s", c->group->runs[0]->precision);
}

static void check_finished(struct check *check, const struct comparison *c,
                           const struct limits *limits) {
    const struct group_figures *figures = &c->figures;
    bool done = figures->last_step >= figures->planned_steps;
    set_rule(check, "%s",
             limits->partial ? "steps that are missing are no failure (--partial)"
                             : "all steps of the config are done");
    set(check, done || limits->partial ? CHECK_PASS : CHECK_FAIL, (double)figures->last_step,
        (double)figures->planned_steps, "%" PRId64 " of %" PRId64 " steps%s", figures->last_step,
        figures->planned_steps, done ? "" : " only");
}

static void check_finite(struct check *check, const struct comparison *c,
                         const struct limits *limits) {
    (void)limits;
    int64_t not_finite = c->figures.not_finite;
    set_rule(check, "loss and gradient norm are finite in every step not skipped");
    set(check, not_finite ? CHECK_FAIL : CHECK_PASS, (double)not_finite, 0,
        "%" PRId64 " step%s whose loss or gradient norm is not finite", not_finite,
        not_finite == 1 ? "" : "s");
}

static double loss_limit(const struct comparison *c, const struct limits *limits) {
    const char *precision = c->group->runs[0]->precision;
    bool four = strstr(precision, "fp4"), eight = strstr(precision, "fp8");
    return limits->loss * (four ? 4 : eight ? 2 : 1);
}

static void check_training(struct check *check, const struct comparison *c,
                           const struct limits *limits) {
    char words[64];
    double limit = loss_limit(c, limits);
    const struct difference *d = &c->training;
    set_loss_rule(check, "the final one is", limits->loss, "; 8 bits: twice that, 4 bits: 4 times",
                  limits);
    if (isnan(d->mean))
        set(check, CHECK_FAIL, NAN, limit, "no finite loss over the last %d steps", c->window);
    else
        set(check, judge(d, limit, limits->lower_is_fine), d->mean, limit,
            "%+.3f %% (%.4f, reference %.4f)%s", d->mean, c->training_loss[COMPARE_OTHER],
            c->training_loss[COMPARE_REFERENCE], noise_words(words, d));
}

static void check_validation(struct check *check, const struct comparison *c,
                             const struct limits *limits) {
    char words[64];
    double limit = loss_limit(c, limits);
    const struct difference *d = &c->validation;
    set_loss_rule(check, "the last one is", limits->loss, "; 8 bits: twice that, 4 bits: 4 times",
                  limits);
    if (c->validation_step < 0)
        set(check, CHECK_NOTHING, NAN, limit, "no validation that all runs have");
    else if (isnan(d->mean))
        set(check, CHECK_FAIL, NAN, limit, "not finite at step %" PRId64, c->validation_step);
    else
        set(check, judge(d, limit, limits->lower_is_fine), d->mean, limit,
            "%+.3f %% (%.4f, reference %.4f) at step %" PRId64 "%s", d->mean,
            c->validation_loss[COMPARE_OTHER], c->validation_loss[COMPARE_REFERENCE],
            c->validation_step, noise_words(words, d));
}

static void check_curve(struct check *check, const struct comparison *c,
                        const struct limits *limits) {
    char words[64];
    bool above = limits->lower_is_fine;
    const struct difference *d = above ? &c->curve_highest : &c->curve;
    set_loss_rule(check, "smoothed and settled it stays", limits->curve, "", limits);
    if (isnan(c->curve_step))
        set(check, CHECK_NOTHING, NAN, limits->curve, "too few steps to smooth");
    else
        set(check, judge(d, limits->curve, above), d->mean, limits->curve,
            "%+.3f %% at most, at step %.0f%s", d->mean,
            above ? c->curve_highest_step : c->curve_step, noise_words(words, d));
}

/* True if `steps` without an update, out of `of`, are within the limit. One per run is always
 * allowed. */
static bool few(int64_t steps, int64_t of, const struct comparison *c,
                const struct limits *limits) {
    double share = of > 0 ? 100.0 * (double)steps / (double)of : 0;
    return share <= limits->skipped || steps <= arrlen(c->group->runs);
}

static void check_norm(struct check *check, const struct comparison *c,
                       const struct limits *limits) {
    char words[64], zeros[64] = "", geometric[40] = "";
    const struct difference *d = &c->norm;
    set_rule(check,
             "the median ratio to the reference is within %g %% of 1; at most %g %%, or one, are 0 "
             "where the reference's is not",
             limits->norm, limits->skipped);
    if (c->norms_not_finite) {
        set(check, CHECK_FAIL, NAN, limits->norm,
            "not finite in %d step%s in which the reference's is", c->norms_not_finite,
            c->norms_not_finite == 1 ? "" : "s");
        return;
    }
    if (isnan(d->mean)) {
        set(check, CHECK_NOTHING, NAN, limits->norm, "no step that has one in all runs");
        return;
    }
    enum check_outcome outcome = judge(d, limits->norm, false);
    if (!few(c->norms_zero, c->norm_steps, c, limits)) outcome = CHECK_FAIL;
    if (c->norms_zero)
        snprintf(zeros, sizeof zeros, ", 0 in %d of %d steps", c->norms_zero, c->norm_steps);
    if (isfinite(c->norm_ratio))
        snprintf(geometric, sizeof geometric, ", geometric mean %.4f", c->norm_ratio);
    set(check, outcome, d->mean, limits->norm, "median ratio %.4f%s%s%s", c->norm_median, geometric,
        zeros, noise_words(words, d));
}

static void check_correlation(struct check *check, const struct comparison *c,
                              const struct limits *limits) {
    double value = c->norm_smoothed_correlation;
    set_rule(check, "smoothed it is at least %g", limits->correlation);
    if (!c->same_seeds || isnan(value))
        set(check, CHECK_NOTHING, value, limits->correlation,
            c->same_seeds ? "too few steps, or norms that do not vary or are 0"
                          : "the runs read different batches");
    else
        set(check, value >= limits->correlation ? CHECK_PASS : CHECK_FAIL, value,
            limits->correlation, "%.4f smoothed, %.4f step by step", value, c->norm_correlation);
}

static void check_skipped(struct check *check, const struct comparison *c,
                          const struct limits *limits) {
    char search[64] = "";
    const struct group_figures *f = &c->figures;
    int64_t skipped = f->skipped - f->skipped_in_search, steps = f->steps - f->searched;
    double share = steps > 0 ? 100.0 * (double)skipped / (double)steps : 0;
    bool fine = few(skipped, steps, c, limits);
    set_rule(check, "at most %g %%, or one, after step %d", limits->skipped, COMPARE_SEARCH_STEPS);
    if (f->skipped_in_search)
        snprintf(search, sizeof search, ", %" PRId64 " of them up to step %d", f->skipped_in_search,
                 COMPARE_SEARCH_STEPS);
    set(check, fine ? CHECK_PASS : CHECK_FAIL, share, limits->skipped,
        "%" PRId64 " of %" PRId64 " steps%s", f->skipped, f->steps, search);
}

static const struct {
    const char *name;
    void (*make)(struct check *check, const struct comparison *c, const struct limits *limits);
} kinds[CHECKS] = {
    [CHECK_FORMAT] = {"format", check_format},
    [CHECK_FINISHED] = {"finished", check_finished},
    [CHECK_FINITE] = {"finite", check_finite},
    [CHECK_TRAINING_LOSS] = {"training loss", check_training},
    [CHECK_VALIDATION_LOSS] = {"validation loss", check_validation},
    [CHECK_CURVE] = {"loss curve", check_curve},
    [CHECK_NORM] = {"gradient norms", check_norm},
    [CHECK_CORRELATION] = {"their correlation", check_correlation},
    [CHECK_SKIPPED] = {"skipped steps", check_skipped},
};

const char *check_name(enum check_id id) {
    return kinds[id].name;
}

/* Another optimizer or rate is meant to change losses, and with them gradient norms: neither is a
 * fault. A loss that is not finite remains one. */
static void rank_instead(struct check *check, enum check_id id) {
    bool norms = id == CHECK_NORM || id == CHECK_CORRELATION;
    bool losses = id >= CHECK_TRAINING_LOSS && id <= CHECK_CURVE && isfinite(check->value);
    if (!norms && !losses) return;
    check->outcome = norms ? CHECK_NOTHING : CHECK_RANKED;
    set_rule(check, "none: the optimizer differs from the reference's");
}

void verdict_rank(struct verdict *verdicts, const struct comparison *comparisons, int count,
                  int reference) {
    int ranked = 0;
    bool validated = true, in[count];
    double losses[count];
    for (int g = 0; g < count; g++) ranked += comparisons[g].other_optimizer;
    for (int g = 0; g < count; g++) {
        in[g] = ranked > 0 && (comparisons[g].other_optimizer || g == reference);
        if (in[g]) validated = validated && isfinite(comparisons[g].validation_loss[COMPARE_OTHER]);
    }
    for (int g = 0; g < count; g++) {
        double loss = validated ? comparisons[g].validation_loss[COMPARE_OTHER]
                                : comparisons[g].training_loss[COMPARE_OTHER];
        losses[g] = isfinite(loss) ? loss : (double)INFINITY;
    }
    for (int g = 0; g < count; g++) {
        if (!in[g]) continue;
        verdicts[g].rank = 1;
        verdicts[g].ranked = ranked + 1;
        for (int other = 0; other < count; other++)
            verdicts[g].rank += in[other] && losses[other] < losses[g];
    }
}

void verdict_make(struct verdict *verdict, const struct comparison *c,
                  const struct limits *limits) {
    *verdict = (struct verdict){.pass = true};
    for (int i = 0; i < CHECKS; i++) {
        kinds[i].make(&verdict->checks[i], c, limits);
        if (c->other_optimizer) rank_instead(&verdict->checks[i], i);
        if (verdict->checks[i].outcome == CHECK_FAIL) verdict->pass = false;
    }
}
