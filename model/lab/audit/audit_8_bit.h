/* An audit of fp8: the error of each operand of the linear layers, and the errors of loss and
 * gradients against fp32, by recipe and with one more layer in bf16. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_subject.h"

/* Looks at config from the weights at `from`, as run_audit does, and makes the report (report.h),
 * which the caller deletes if 0 is returned. "delayed" has no history here, so it is as "tensor".
 * Returns RESULT_STOPPED when *stop asked for it. */
int eight_bit_audit_run(struct cJSON **report, const struct config *config, const char *from,
                        int repetitions, const volatile sig_atomic_t *stop, struct error *error);

/* Returns what to make of the trials: an array of texts. Trial 1 is fp8 as configured; from trial
 * EIGHT_BIT_LAYERS on one layer each is left in bf16. */
enum { EIGHT_BIT_LAYERS = 6 };
struct cJSON *eight_bit_advice(const struct cJSON *trials);
