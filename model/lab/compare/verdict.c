#include "model/lab/compare/verdict.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "data/util/table.h"

enum { TEXT_MAX = 200, NOISE_MAX = 64 };

/* Adds the next check of enum check_id. NaN: no value or limit. */
__attribute__((format(printf, 6, 7))) static void add(cJSON *checks, const char *outcome,
                                                      double value, double limit, const char *rule,
                                                      const char *format, ...) {
    static const char *const names[CHECKS] = {
        "format",         "finished",          "finite",
        "training loss",  "validation loss",   "loss curve",
        "gradient norms", "their correlation", "skipped steps"};
    const char *name = names[cJSON_GetArraySize(checks)];
    char text[TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON *check = json_add_item(checks);
    cJSON_AddStringToObject(check, "name", name);
    cJSON_AddStringToObject(check, "outcome", outcome);
    JSON_NUMBERS(check, {"value", value}, {"limit", limit});
    cJSON_AddStringToObject(check, "text", text);
    cJSON_AddStringToObject(check, "rule", rule);
}

/* Writes a rule that limits the difference of a loss from the reference's. */
static void loss_rule(char rule[TEXT_MAX], const char *before, double limit, const char *behind) {
    snprintf(rule, TEXT_MAX, "%s at most %g %% above the reference%s", before, limit, behind);
}

/* Writes the margin of a difference and if it is real; "" for a single seed. Returns words. */
static const char *noise_words(char words[NOISE_MAX], const struct difference *difference) {
    words[0] = 0;
    if (difference->count > 1 && isfinite(difference->mean))
        snprintf(words, NOISE_MAX, ", %s: seeds give or take %.2g %%",
                 difference->real ? "real" : "within noise", difference->margin);
    return words;
}

/* Returns the outcome for a difference in %. A loss below the limit is better. */
static const char *judge(const struct difference *difference, double limit, bool is_loss) {
    assert(!isnan(difference->mean));
    if (fabs(difference->mean) <= limit) return "pass";
    if (difference->count > 1 && !difference->real) return "noise";
    return is_loss && difference->mean < 0 ? "better" : "fail";
}

/* Adds the checks that the group computed in its precision, to its end, and finite values. A 16-bit
 * group that computed in fp32 fails: its agreement with fp32 would prove nothing. */
static void check_runs(cJSON *checks, const struct comparison *c, const struct limits *limits) {
    const struct group_figures *f = &c->figures;
    const struct run_record *run = c->group->runs[0];
    bool in_fp32 = run->in_fp32 && strcmp(run->precision, "fp32") != 0;
    bool done = f->last_step >= f->planned_steps;
    add(checks, in_fp32 ? "fail" : "pass", NAN, NAN,
        "it computed in the precision that its config names", "%s",
        in_fp32 ? "fp32 everywhere, for autocast.enabled is false" : run->precision);
    add(checks, done || limits->partial ? "pass" : "fail", (double)f->last_step,
        (double)f->planned_steps,
        limits->partial ? "steps that are missing are no failure (--partial)"
                        : "all steps of the config are done",
        "%" PRId64 " of %" PRId64 " step%s%s", f->last_step, f->planned_steps,
        PLURAL(f->planned_steps), done ? "" : " only");
    add(checks, f->not_finite ? "fail" : "pass", (double)f->not_finite, 0,
        "loss and gradient norm are finite in every step not skipped",
        "%" PRId64 " step%s whose loss or gradient norm is not finite", f->not_finite,
        PLURAL(f->not_finite));
}

static double loss_limit(const struct comparison *c, const struct limits *limits) {
    const char *precision = c->group->runs[0]->precision;
    bool four = strstr(precision, "fp4"), eight = strstr(precision, "fp8");
    return limits->loss * (four ? 4 : eight ? 2 : 1);
}

/* Adds the check of the final training loss, or of the last validation loss. */
static void check_loss(cJSON *checks, const struct comparison *c, const struct limits *limits,
                       bool validation) {
    char rule[TEXT_MAX], words[NOISE_MAX], at[40] = "";
    double limit = loss_limit(c, limits);
    const struct difference *d = validation ? &c->validation : &c->training;
    const double *losses = validation ? c->validation_loss : c->training_loss;
    loss_rule(rule, validation ? "the last one is" : "the final one is", limits->loss,
              "; 8 bits: twice that, 4 bits: 4 times");
    if (validation) snprintf(at, sizeof at, " at step %" PRId64, c->validation_step);
    if (validation && c->validation_step < 0)
        add(checks, "nothing", NAN, limit, rule, "no validation that all runs have");
    else if (isnan(d->mean) && validation)
        add(checks, "fail", NAN, limit, rule, "not finite%s", at);
    else if (isnan(d->mean))
        add(checks, "fail", NAN, limit, rule, "no finite loss over the last %d steps", c->window);
    else
        add(checks, judge(d, limit, true), d->mean, limit, rule, "%s %% (%.4f, reference %.4f)%s%s",
            decimal(d->mean, 3, true).text, losses[COMPARE_OTHER], losses[COMPARE_REFERENCE], at,
            noise_words(words, d));
}

static void check_curve(cJSON *checks, const struct comparison *c, const struct limits *limits) {
    char rule[TEXT_MAX], words[NOISE_MAX];
    /* Too high at one step matters more than farther below at another. */
    bool above = c->curve_highest.mean > limits->curve;
    const struct difference *d = above ? &c->curve_highest : &c->curve;
    loss_rule(rule, "smoothed and settled it stays", limits->curve, "");
    if (isnan(c->curve_step))
        add(checks, "nothing", NAN, limits->curve, rule, "too few steps to smooth");
    else
        add(checks, judge(d, limits->curve, true), d->mean, limits->curve, rule,
            "%s %% at most, at step %.0f%s", decimal(d->mean, 3, true).text,
            above ? c->curve_highest_step : c->curve_step, noise_words(words, d));
}

/* True if `steps` without an update, out of `of`, are within the limit. One per run is always
 * allowed. */
static bool few(int64_t steps, int64_t of, const struct comparison *c,
                const struct limits *limits) {
    double share = of > 0 ? 100.0 * (double)steps / (double)of : 0;
    return share <= limits->skipped || steps <= arrlen(c->group->runs);
}

static void check_norm(cJSON *checks, const struct comparison *c, const struct limits *limits) {
    char rule[TEXT_MAX], words[NOISE_MAX], zeros[64] = "", geometric[40] = "";
    const struct difference *d = &c->norm;
    int not_finite = c->norms_not_finite;
    snprintf(rule, sizeof rule,
             "the median ratio to the reference is within %g %% of 1; at most %g %%, or one, are 0 "
             "where the reference's is not",
             limits->norm, limits->skipped);
    if (c->norms_zero)
        snprintf(zeros, sizeof zeros, ", 0 in %d of %d step%s", c->norms_zero, c->norm_steps,
                 PLURAL(c->norm_steps));
    if (isfinite(c->norm_ratio))
        snprintf(geometric, sizeof geometric, ", geometric mean %.4f", c->norm_ratio);
    if (not_finite)
        add(checks, "fail", NAN, limits->norm, rule,
            "not finite in %d step%s in which the reference's is", not_finite, PLURAL(not_finite));
    else if (isnan(d->mean))
        add(checks, "nothing", NAN, limits->norm, rule, "no step that has one in all runs");
    else
        add(checks,
            few(c->norms_zero, c->norm_steps, c, limits) ? judge(d, limits->norm, false) : "fail",
            d->mean, limits->norm, rule, "median ratio %.4f%s%s%s", c->norm_median, geometric,
            zeros, noise_words(words, d));
}

static void check_correlation(cJSON *checks, const struct comparison *c,
                              const struct limits *limits) {
    char rule[TEXT_MAX];
    double value = c->norm_smoothed_correlation;
    snprintf(rule, sizeof rule, "smoothed it is at least %g", limits->correlation);
    if (!c->same_seeds || isnan(value))
        add(checks, "nothing", value, limits->correlation, rule, "%s",
            c->same_seeds ? "too few steps, or norms that do not vary or are 0"
                          : "the runs read different batches");
    else
        add(checks, value >= limits->correlation ? "pass" : "fail", value, limits->correlation,
            rule, "%.4f smoothed, %.4f step by step", value, c->norm_correlation);
}

static void check_skipped(cJSON *checks, const struct comparison *c, const struct limits *limits) {
    char rule[TEXT_MAX], search[64] = "";
    const struct group_figures *f = &c->figures;
    int64_t skipped = f->skipped - f->skipped_in_search, steps = f->steps - f->searched;
    double share = steps > 0 ? 100.0 * (double)skipped / (double)steps : 0;
    snprintf(rule, sizeof rule, "at most %g %%, or one, after step %d", limits->skipped,
             COMPARE_SEARCH_STEPS);
    if (f->skipped_in_search)
        snprintf(search, sizeof search, ", %" PRId64 " of them up to step %d", f->skipped_in_search,
                 COMPARE_SEARCH_STEPS);
    add(checks, few(skipped, steps, c, limits) ? "pass" : "fail", share, limits->skipped, rule,
        "%" PRId64 " of %" PRId64 " step%s%s", f->skipped, f->steps, PLURAL(f->steps), search);
}

/* Another optimizer or rate is meant to change losses, and with them gradient norms: neither is a
 * fault. A loss that is not finite remains one. */
static void rank_instead(cJSON *check, enum check_id id) {
    bool norms = id == CHECK_NORM || id == CHECK_CORRELATION;
    bool losses =
        id >= CHECK_TRAINING_LOSS && id <= CHECK_CURVE && isfinite(json_number_at(check, "value"));
    if (!norms && !losses) return;
    cJSON_SetValuestring(cJSON_GetObjectItem(check, "outcome"), norms ? "nothing" : "ranked");
    cJSON_SetValuestring(cJSON_GetObjectItem(check, "rule"),
                         "none: the optimizer differs from the reference's");
}

/* Losses of other objectives, and their gradients, are other quantities. Distillation validates by
 * the cross entropy, like others. */
static void leave_out(cJSON *check, enum check_id id, const struct comparison *c) {
    bool compares = id >= CHECK_TRAINING_LOSS && id <= CHECK_CORRELATION;
    if (!compares || (id == CHECK_VALIDATION_LOSS && !c->other_validation)) return;
    cJSON_SetValuestring(cJSON_GetObjectItem(check, "outcome"), "nothing");
    cJSON_SetValuestring(cJSON_GetObjectItem(check, "rule"),
                         "none: the objective differs from the reference's");
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
    cJSON *checks = cJSON_CreateArray(), *check;
    int id = 0;
    *verdict = (struct verdict){.pass = true, .checks = checks};
    check_runs(checks, c, limits);
    check_loss(checks, c, limits, false);
    check_loss(checks, c, limits, true);
    check_curve(checks, c, limits);
    check_norm(checks, c, limits);
    check_correlation(checks, c, limits);
    check_skipped(checks, c, limits);
    assert(cJSON_GetArraySize(checks) == CHECKS);
    cJSON_ArrayForEach(check, checks) {
        if (c->other_optimizer) rank_instead(check, (enum check_id)id);
        if (c->other_objective) leave_out(check, (enum check_id)id, c);
        id++;
        if (strcmp(json_text_at(check, "outcome"), "fail") == 0) verdict->pass = false;
    }
}
