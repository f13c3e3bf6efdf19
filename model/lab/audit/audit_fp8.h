/* Audit of fp8: rounding errors of each operand of the linear layers, and errors of loss and
 * gradients relative to fp32, for each recipe and with one more layer in bf16. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_subject.h"

/* Audits config with the weights at `from` (see audit_run), and makes the report (report.h), which
 * the caller deletes if 0 is returned. The recipe "delayed" has no amax history here and behaves
 * like "tensor". Returns RESULT_STOPPED after a signal in *stop, -1 with a message. */
int fp8_audit_run(struct cJSON **report, const struct config *config, const char *from,
                  int repetitions, const volatile sig_atomic_t *stop, struct error *error);

/* Returns advice from the trials as an array of sentences. Trial 1 is fp8 as configured. Each trial
 * from FP8_TRIAL_LAYERS on leaves one layer in bf16. */
enum { FP8_TRIAL_LAYERS = 6 };
struct cJSON *fp8_advice(const struct cJSON *trials);
