/* An audit of bf16 and fp16: their effect on a run, operation by operation. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/lab/audit/audit_format.h"

enum { AUDIT_BF16, AUDIT_FP16, AUDIT_FORMATS };

/* "bf16" or "fp16". */
const char *audit_name(int format);

/* The effect of 16-bit master weights on one step, for one parameter or for all. An update is what
 * the step adds to the fp32 master. A master of 16 bits holds the weight rounded, and rounds once
 * more after the update was added. */
struct update {
    uint64_t changed;             /* elements whose update is not 0 */
    uint64_t lost[AUDIT_FORMATS]; /* of these, those whose 16-bit master stays as it was */
    double signal;                /* sum of squares of the updates */
    double noise[AUDIT_FORMATS];  /* the same of what the master moved too much or too little */
};

void update_add(struct update *update, const float *before, const float *after, size_t count);

double update_lost(const struct update *update, int format); /* a share */

/* 10 log10(signal / noise); INFINITY without noise, and where nothing changed. */
double update_decibel(const struct update *update, int format);

/* One real step of the reference in fp32. Nothing changes if its gradients are not finite. */
struct audit_update {
    int64_t step; /* counted from 1 */
    double lr;
    struct update all, *parameters; /* [count of gpt->list], in its order */
};

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
