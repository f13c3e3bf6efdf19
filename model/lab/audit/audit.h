/* What fp16 and bf16 do to a run, operation by operation. */
#pragma once

#include <signal.h>

#include "data/base/error.h"
#include "model/lab/audit/audit_format.h"
#include "model/lab/audit/audit_update.h"

enum { AUDIT_BF16, AUDIT_FP16, AUDIT_FORMATS };

/* "bf16" or "fp16". */
const char *audit_name(int format);

/* All that was found out. */
struct audit {
    struct subject subject;
    struct audit_pass reference; /* in fp32 */
    struct audit_update update;
    struct audit_format formats[AUDIT_FORMATS]; /* those asked for are made */
};

/* Looks at config from the weights at `from` (a checkpoint or a directory of Hugging Face; NULL:
 * initial ones, or model.init_from). wanted: which formats. Returns
 * RESULT_STOPPED when stop asked for it. The audit is to be freed whatever comes back. */
int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct error *error);
void audit_free(struct audit *audit);
