#include "model/lab/audit/run_audit.h"

#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/program.h"
#include "data/util/signals.h"
#include "data/util/table.h"
#include "model/lab/audit/audit.h"
#include "model/config/config_keys.h"

/* Limit of --repetitions: the samples of more micro-batches would hardly fit in memory. */
enum { REPETITIONS_MAX = 1000 };

/* Sets the formats to audit: those named by the user; by default bf16 and fp16, and the config's
 * precision if it quantizes. */
static int choose_formats(bool wanted[AUDIT_FORMATS], bool quantized[CONFIG_PRECISION_AUTO],
                          const struct audit_options *options, const struct config *config,
                          struct error *error) {
    bool none = options->precision_count == 0;
    if (options->repetitions > REPETITIONS_MAX)
        return fail(error, "--repetitions: at most %d for --audit", REPETITIONS_MAX);
    wanted[AUDIT_BF16] = wanted[AUDIT_FP16] = none;
    bool any = none;
    for (int i = 0; i < CONFIG_PRECISION_AUTO; i++)
        quantized[i] = none && i == (int)config->precision &&
                       config_precision_quantizes((enum config_precision)i);
    for (int i = 0; i < options->precision_count; i++) {
        enum config_precision named = options->precisions[i];
        if (named == CONFIG_PRECISION_BF16) wanted[AUDIT_BF16] = true;
        if (named == CONFIG_PRECISION_FP16) wanted[AUDIT_FP16] = true;
        if (config_precision_quantizes(named)) quantized[named] = true;
        any = any || named != CONFIG_PRECISION_FP32;
    }
    if (any) return 0;
    return fail(error, "--audit --precision fp32: there is nothing to compare; fp32 is always the "
                       "reference,\nname bf16, fp16, fp8 or another, or leave --precision out");
}

/* Publishes a report, and deletes it. */
static int publish(cJSON *report, const char *folder, const char *name, struct error *error) {
    int status = report_publish(audit_print, report, folder, name, error);
    cJSON_Delete(report);
    return status;
}

int run_audit(const struct config *config, const char *from, const struct audit_options *options,
              struct error *error) {
    bool wanted[AUDIT_FORMATS], quantized[CONFIG_PRECISION_AUTO];
    struct audit audit;
    cJSON *report;
    const volatile sig_atomic_t *stop = signals_catch();
    if (choose_formats(wanted, quantized, options, config, error)) return EXIT_USAGE;
    if (options->out && report_folder(options->out, error)) return EXIT_FAILED;
    int repetitions = options->repetitions > 0 ? (int)options->repetitions : SUBJECT_REPETITIONS;
    int status = 0;
    if (wanted[AUDIT_BF16] || wanted[AUDIT_FP16]) {
        status = audit_run(&audit, config, from, wanted, repetitions, stop, error);
        if (status == 0) status = publish(audit_report(&audit), options->out, "audit", error);
        audit_free(&audit);
    }
    for (int i = 0; status == 0 && i < CONFIG_PRECISION_AUTO; i++) {
        char file[48];
        if (!quantized[i]) continue;
        const char *name = config_precision_name((enum config_precision)i);
        snprintf(file, sizeof file, "audit_%s", name);
        status = quantized_audit_run(&report, config, (enum config_precision)i, from, repetitions,
                                     stop, error);
        if (status == 0) status = publish(report, options->out, file, error);
    }
    if (status == RESULT_STOPPED) {
        fprintf(stderr, "stopped by %s\n", signal_text(*stop));
        return EXIT_SIGNAL + *stop;
    }
    return status ? EXIT_FAILED : EXIT_DONE;
}
