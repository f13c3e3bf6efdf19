/* Audit of a precision that quantizes the operands of linear layers (fp8, mxfp8, nvfp4 ...):
 * rounding errors of each operand, and errors of loss and gradients relative to fp32, with other
 * settings and with one more part of the model in bf16. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_subject.h"

/* Audits config in a precision that quantizes, with the weights at `from` (see audit_run), and
 * makes the report (report.h), which the caller deletes if 0 is returned. The recipe "delayed" of
 * fp8 has no amax history here and behaves like "tensor". Returns RESULT_STOPPED after a signal in
 * *stop, -1 with a message. */
int quantized_audit_run(struct cJSON **report, const struct config *config,
                        enum config_precision precision, const char *from, int repetitions,
                        const volatile sig_atomic_t *stop, struct error *error);

/* Returns advice from the trials as an array of sentences. Trial 1 is the precision as configured.
 * The trials with a member "config" leave one more part in bf16: that is how. */
struct cJSON *quantized_advice(const struct cJSON *trials, enum config_precision precision);
