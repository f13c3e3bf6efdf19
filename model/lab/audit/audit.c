#include "model/lab/audit/audit.h"

#include <string.h>

static const enum dtype dtypes[] = {[AUDIT_BF16] = DTYPE_BF16, [AUDIT_FP16] = DTYPE_F16};

const char *audit_name(int format) {
    return dtype_name(dtypes[format]);
}

/* The reference in fp32, and one step of it. */
static int run_reference(struct audit *audit, struct trainer *trainer, struct error *error) {
    struct subject *subject = &audit->subject;
    int status = audit_pass_run(&audit->reference, subject, trainer, NULL, PASS_TRACED, error);
    if (status == 0 && !audit->reference.finite)
        return fail(error,
                    "in fp32 too the loss (%g) or its gradients are not finite: there is nothing "
                    "to audit\nname an earlier checkpoint with --from",
                    audit->reference.loss);
    if (status == 0 && *subject->stop) status = RESULT_STOPPED;
    if (status == 0) status = audit_update_run(&audit->update, subject, trainer, error);
    return status;
}

int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct error *error) {
    struct trainer trainer;
    memset(audit, 0, sizeof *audit);
    audit->subject.stop = stop;
    audit->subject.repetitions = repetitions;
    if (subject_open(&audit->subject, &trainer, config, from, error)) return -1;
    int status = run_reference(audit, &trainer, error);
    trainer_close(&trainer);
    for (int i = 0; status == 0 && i < AUDIT_FORMATS; i++)
        if (wanted[i])
            status = audit_format_run(&audit->formats[i], dtypes[i], &audit->subject,
                                      &audit->reference, error);
    return status;
}

void audit_free(struct audit *audit) {
    for (int i = 0; i < AUDIT_FORMATS; i++) audit_format_free(&audit->formats[i]);
    audit_pass_free(&audit->reference);
    audit_update_free(&audit->update);
    subject_close(&audit->subject);
}
