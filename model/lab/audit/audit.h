/* An audit of bf16 and fp16: their effect on a run, operation by operation. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/lab/audit/audit_format.h"

enum { AUDIT_BF16, AUDIT_FP16, AUDIT_FORMATS };

/* Returns "bf16" or "fp16". */
const char *audit_name(int format);

/* Effect of 16-bit master weights on one step, for one parameter or for all. An update is the
 * change of the fp32 master weight in the step. A 16-bit master weight starts rounded, and is
 * rounded again after the update is added. */
struct update {
    uint64_t changed;             /* number of elements whose update is not 0 */
    uint64_t lost[AUDIT_FORMATS]; /* number of those whose 16-bit master does not change */
    double signal;                /* sum of squares of the updates */
    double noise[AUDIT_FORMATS];  /* sum of squares of the rounding errors of the updates */
};

void update_add(struct update *update, const float *before, const float *after, size_t count);

double update_lost(const struct update *update, int format); /* lost / changed, or 0 */

/* Returns 10 log10(signal / noise), or INFINITY without noise. */
double update_decibel(const struct update *update, int format);

/* One training step of the fp32 reference. No weight changes if its gradients are not finite. */
struct audit_update {
    int64_t step; /* counted from 1 */
    double lr;
    struct update all, *parameters; /* [count of gpt->list], in its order */
};

/* Results of an audit. */
struct audit {
    struct subject subject;
    struct audit_pass reference; /* fp32 pass */
    struct audit_update update;
    struct cJSON *muon;                         /* rows of audit_muon, or NULL */
    struct audit_format formats[AUDIT_FORMATS]; /* `made` is true for the wanted ones */
};

/* Audits config with the weights at `from` (a checkpoint or a Hugging Face model directory; NULL:
 * model.init_from or initial weights) in the wanted formats. Returns RESULT_STOPPED after a signal
 * in *stop, -1 with a message. The audit is to be freed in every case. */
int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct error *error);
void audit_free(struct audit *audit);
