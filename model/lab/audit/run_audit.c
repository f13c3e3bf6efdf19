#include "model/lab/audit/run_audit.h"

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/note.h"
#include "data/util/program.h"
#include "data/util/signals.h"
#include "data/util/table.h"
#include "model/lab/audit/audit.h"
#include "model/config/config_keys.h"

/* Limit of --repetitions: the samples of more micro-batches would hardly fit in memory. */
enum { REPETITIONS_MAX = 1000 };

/* Sets the precisions to audit: those named by the user; by default bf16 and fp16, and the config's
 * if it quantizes. */
static int choose_precisions(bool wanted[CONFIG_PRECISION_AUTO], const struct command_line *line,
                             const struct config *config, struct error *error) {
    bool none = line->precision_count == 0, any = none;
    if (line->repetitions > REPETITIONS_MAX)
        return fail(error, "--repetitions: at most %d for --audit", REPETITIONS_MAX);
    wanted[CONFIG_PRECISION_BF16] = wanted[CONFIG_PRECISION_FP16] = none;
    if (none && config_precision_quantizes(config->precision)) wanted[config->precision] = true;
    for (int i = 0; i < line->precision_count; i++) {
        wanted[line->precisions[i]] = true;
        any = any || line->precisions[i] != CONFIG_PRECISION_FP32;
    }
    if (any) return 0;
    return fail(error, "--audit --precision fp32: there is nothing to compare; fp32 is always the "
                       "reference, name bf16, fp16, fp8 or another, or leave --precision out");
}

/* Publishes a report, and deletes it. */
static int publish(cJSON *report, const char *folder, const char *name, struct error *error) {
    int status = report_publish(audit_print, report, folder, name, error);
    cJSON_Delete(report);
    return status;
}

int run_audit(const struct config *config, const char *from, const struct command_line *line,
              struct error *error) {
    bool wanted[CONFIG_PRECISION_AUTO] = {false};
    struct audit audit;
    cJSON *report;
    const volatile sig_atomic_t *stop = signals_catch();
    if (choose_precisions(wanted, line, config, error)) return EXIT_USAGE;
    if (line->out && report_folder(line->out, error)) return EXIT_FAILED;
    int repetitions = line->repetitions > 0 ? (int)line->repetitions : SUBJECT_REPETITIONS;
    const bool formats[] = {
        [AUDIT_BF16] = wanted[CONFIG_PRECISION_BF16], [AUDIT_FP16] = wanted[CONFIG_PRECISION_FP16]};
    int status = 0;
    if (formats[AUDIT_BF16] || formats[AUDIT_FP16]) {
        status = audit_run(&audit, config, from, formats, repetitions, stop, error);
        if (status == 0) status = publish(audit_report(&audit), line->out, "audit", error);
        audit_free(&audit);
    }
    for (int i = 0; status == 0 && i < CONFIG_PRECISION_AUTO; i++) {
        char file[48];
        enum config_precision precision = (enum config_precision)i;
        if (!wanted[i] || !config_precision_quantizes(precision)) continue;
        snprintf(file, sizeof file, "audit_%s", config_precision_name(precision));
        status = quantized_audit_run(&report, config, precision, from, repetitions, stop, error);
        if (status == 0) status = publish(report, line->out, file, error);
    }
    if (status == RESULT_STOPPED) {
        note(stderr, "audit", "stopped by %s", signal_text(*stop));
        return EXIT_SIGNAL + *stop;
    }
    return status ? EXIT_FAILED : EXIT_DONE;
}
