#include "model/lab/audit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/error.h"
#include "data/files.h"
#include "model/lab/audit_report.h"
#include "model/report.h"
#include "model/run.h"

static const enum dtype dtypes[] = {[AUDIT_BF16] = DTYPE_BF16, [AUDIT_FP16] = DTYPE_F16};

const char *audit_name(int format) {
    return dtype_name(dtypes[format]);
}

/* The reference in fp32, and one step of it. */
static int run_reference(struct audit *audit, struct trainer *trainer, char *error) {
    struct subject *subject = &audit->subject;
    int status = audit_pass_run(&audit->reference, subject, trainer, NULL, PASS_TRACED, error);
    if (status == 0 && !audit->reference.finite)
        return fail(error,
                    "in fp32 too the loss (%g) or its gradients are not finite: there is nothing "
                    "to audit\nname an earlier checkpoint with --from",
                    audit->reference.loss);
    if (status == 0 && *subject->stop) status = 1;
    if (status == 0) status = audit_update_run(&audit->update, subject, trainer, error);
    return status;
}

int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct audit_progress *progress, char *error) {
    struct trainer trainer;
    memset(audit, 0, sizeof *audit);
    audit->subject.stop = stop;
    audit->subject.repetitions = repetitions;
    if (progress) progress->say(progress, "fp32");
    if (subject_open(&audit->subject, &trainer, config, from, error)) return -1;
    int status = run_reference(audit, &trainer, error);
    trainer_close(&trainer);
    for (int i = 0; status == 0 && i < AUDIT_FORMATS; i++)
        if (wanted[i])
            status = audit_format_run(&audit->formats[i], dtypes[i], &audit->subject,
                                      &audit->reference, progress, error);
    return status;
}

void audit_free(struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++) audit_format_free(&audit->formats[i]);
    audit_pass_free(&audit->reference);
    audit_update_free(&audit->update);
    subject_close(&audit->subject);
}

/* Says what is being done once it takes longer than people like to wait in silence. */
struct spoken_progress {
    struct audit_progress progress; /* first, so that it is found behind one */
    double last;
};

static void say(struct audit_progress *progress, const char *what) {
    enum { SILENCE_SECONDS = 4 };
    struct spoken_progress *spoken = (struct spoken_progress *)progress;
    double now = report_clock();
    if (now - spoken->last < SILENCE_SECONDS) return;
    fprintf(stderr, "audit: %s ...\n", what);
    spoken->last = now;
}

/* What there would hardly be memory for. */
enum { REPETITIONS_MAX = 1000 };

static int choose_formats(bool wanted[AUDIT_FORMATS], const struct command_line *line,
                          char *error) {
    if (line->repetitions > REPETITIONS_MAX)
        return fail(error, "--repetitions: at most %d for --audit", REPETITIONS_MAX);
    for (int i = 0; i < AUDIT_FORMATS; i++) wanted[i] = line->precision_count == 0;
    for (int i = 0; i < line->precision_count; i++) {
        if (line->precisions[i] == CONFIG_PRECISION_BF16) wanted[AUDIT_BF16] = true;
        if (line->precisions[i] == CONFIG_PRECISION_FP16) wanted[AUDIT_FP16] = true;
    }
    if (wanted[AUDIT_BF16] || wanted[AUDIT_FP16]) return 0;
    return fail(error, "--audit --precision fp32: there is nothing to compare; fp32 is always the "
                       "reference,\nname bf16 or fp16 or leave --precision out");
}

/* What cannot be written to is said before the work, which takes long. */
static int make_folder(const char *folder, char *error) {
    if (directory_create(folder, error)) return -1;
    if (access(folder, W_OK | X_OK) == 0) return 0;
    return fail(error, "cannot write to the directory %.500s: %s\nname another one with --out",
                folder, strerror(errno));
}

static int report(const struct audit *audit, const char *folder, char *error) {
    struct advice advice;
    advice_make(&advice, audit);
    audit_print(stdout, audit, &advice);
    int status = folder ? audit_write(audit, &advice, folder, error) : 0;
    advice_free(&advice);
    return status;
}

int run_audit(const struct config *config, const char *from, const struct command_line *line,
              char *error) {
    bool wanted[AUDIT_FORMATS];
    struct audit audit;
    struct spoken_progress spoken = {{say}, report_clock()};
    const volatile sig_atomic_t *stop = run_catch_signals();
    if (choose_formats(wanted, line, error)) return EXIT_USAGE;
    if (line->out && make_folder(line->out, error)) return EXIT_FAILED;
    int repetitions = line->repetitions > 0 ? (int)line->repetitions : SUBJECT_REPETITIONS;
    int status =
        audit_run(&audit, config, from, wanted, repetitions, stop, &spoken.progress, error);
    if (status == 0) status = report(&audit, line->out, error);
    audit_free(&audit);
    if (status > 0) {
        fprintf(stderr, "stopped by signal %d\n", (int)*stop);
        return EXIT_SIGNAL + *stop;
    }
    return status ? EXIT_FAILED : EXIT_DONE;
}
