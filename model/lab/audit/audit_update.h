/* What a 16-bit master would make of one step: how much of each weight's update would be left. */
#pragma once

#include "data/base/error.h"
#include "model/lab/audit/audit_subject.h"

enum { MASTER_BF16, MASTER_FP16, MASTER_FORMATS };

/* Of one parameter, or of all. An update is what the step adds to the fp32 master. A master of 16
 * bits holds the weight rounded, and rounds once more after the update was added. */
struct update {
    uint64_t changed;              /* elements whose update is not 0 */
    uint64_t lost[MASTER_FORMATS]; /* of these, those whose 16-bit master stays as it was */
    double signal;                 /* sum of squares of the updates */
    double noise[MASTER_FORMATS];  /* the same of what the master moved too much or too little */
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

int audit_update_run(struct audit_update *update, struct subject *subject,
                     struct trainer *reference, struct error *error);
void audit_update_free(struct audit_update *update);
