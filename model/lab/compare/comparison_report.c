#include "model/lab/compare/comparison_report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "data/util/table.h"

__attribute__((format(printf, 2, 3))) static void warn(struct comparison_report *report,
                                                       const char *format, ...) {
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) end_out_of_memory();
    va_end(arguments);
    arrput(report->warnings, text);
}

static void warn_of_configs(struct comparison_report *report) {
    const cJSON *difference;
    cJSON_ArrayForEach(difference, report->differences) {
        const char *key = json_text_at(difference, "key");
        const char *weight = json_text_at(difference, "weight");
        if (strcmp(weight, "training") == 0)
            warn(report, "%s differs: these are different trainings, whose losses need not agree",
                 key);
        if (strcmp(weight, "validation") == 0)
            warn(report, "%s differs: validation losses may be of other text", key);
    }
}

static void warn_of_runs(struct comparison_report *report, const struct run_group *group) {
    if (verdict_computed_in_fp32(group))
        warn(report, "%s: autocast.enabled is false, so it computed in fp32 everywhere",
             group->label);
    for (int r = 0; r < arrlen(group->runs); r++) {
        const struct run_record *run = group->runs[r];
        int64_t last = run_record_last_step(run);
        if (last < run->planned_steps)
            warn(report, "%s has done %" PRId64 " of %" PRId64 " steps", run->path, last,
                 run->planned_steps);
        if (run->cut)
            warn(report, "%s: the last line of its metrics.jsonl is not whole and left out",
                 run->path);
    }
}

static void warn_of_unpaired(struct comparison_report *report, const struct run_group *group,
                             const char *other, int pairs) {
    int runs = (int)arrlen(group->runs);
    if (pairs < runs)
        warn(report,
             "%s: %d of its %d runs have a seed that %s has too; the others do not count in "
             "differences",
             group->label, pairs, runs, other);
}

static void warn_of_pairs(struct comparison_report *report, const struct comparison *c) {
    const char *label = c->group->label, *reference = c->reference->label;
    int pairs = (int)arrlen(c->pairs);
    if (c->same_seeds) {
        warn_of_unpaired(report, c->group, reference, pairs);
        warn_of_unpaired(report, c->reference, label, pairs);
    } else {
        warn(report,
             "%s and %s have no seed in common: other weights and batches, so that differences of "
             "some %% mean nothing",
             label, reference);
    }
    if (c->validation_step >= 0 && (double)c->validation_step < c->step[c->steps - 1])
        warn(report, "%s: the last validation in common with %s is that of step %" PRId64, label,
             reference, c->validation_step);
}

/* Sets the reference to the group of that label, by default the first, which has the first run. */
static int find_reference(struct comparison_report *report, const char *label,
                          struct error *error) {
    char labels[ERROR_MAX] = "";
    for (int g = 0; g < arrlen(report->groups); g++) {
        const char *own = report->groups[g].label;
        size_t used = strlen(labels);
        report->reference = g;
        if (!label || strcmp(own, label) == 0) return 0;
        snprintf(labels + used, sizeof labels - used, "%s %s", g ? "," : "", own);
    }
    return fail(error, "--reference %s: the groups are%s", label, labels);
}

static int compare_all(struct comparison_report *report, struct error *error) {
    const struct run_group *reference = &report->groups[report->reference];
    for (int g = 0; g < arrlen(report->groups); g++) {
        struct comparison comparison;
        struct verdict verdict;
        if (comparison_make(&comparison, reference, &report->groups[g], error)) return -1;
        arrput(report->comparisons, comparison);
        verdict_make(&verdict, &comparison, &report->limits);
        arrput(report->verdicts, verdict);
        struct equal_loss equal;
        equal_loss_make(&equal, &comparison);
        arrput(report->equal_losses, equal);
    }
    verdict_rank(report->verdicts, report->comparisons, (int)arrlen(report->groups),
                 report->reference);
    return 0;
}

static int make(struct comparison_report *report, const struct run_record *runs,
                char *const *labels, int count, const char *reference, struct error *error) {
    if (run_groups_make(&report->groups, runs, labels, count, error)) return -1;
    if (arrlen(report->groups) < 2)
        return fail(error, "all runs differ in their seed only: there is nothing to compare\n"
                           "to see them as different, give them labels: LABEL=RUN");
    if (find_reference(report, reference, error)) return -1;
    report->differences = config_differences(report->groups);
    if (compare_all(report, error)) return -1;
    warn_of_configs(report);
    for (int g = 0; g < arrlen(report->groups); g++) {
        warn_of_runs(report, &report->groups[g]);
        warn_of_pairs(report, &report->comparisons[g]);
    }
    return 0;
}

int comparison_report_make(struct comparison_report *report, const struct run_record *runs,
                           char *const *labels, int count, const char *reference,
                           const struct limits *limits, struct error *error) {
    *report = (struct comparison_report){.limits = *limits};
    if (make(report, runs, labels, count, reference, error) == 0) return 0;
    comparison_report_free(report);
    return -1;
}

void comparison_report_free(struct comparison_report *report) {
    for (int i = 0; i < arrlen(report->comparisons); i++) comparison_free(&report->comparisons[i]);
    for (int i = 0; i < arrlen(report->warnings); i++) free(report->warnings[i]);
    arrfree(report->comparisons);
    arrfree(report->verdicts);
    arrfree(report->equal_losses);
    arrfree(report->warnings);
    cJSON_Delete(report->differences);
    run_groups_free(report->groups);
    *report = (struct comparison_report){0};
}

bool comparison_report_passes(const struct comparison_report *report) {
    for (int g = 0; g < arrlen(report->verdicts); g++)
        if (!report->verdicts[g].pass) return false;
    return true;
}
