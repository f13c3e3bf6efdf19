/* Audit of one 16-bit format: the settings it needs to stay finite, and its errors. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_pass.h"

/* Sets of autocast sites, as bits by enum autocast_site: those in autocast.float32. */
unsigned sites_of_config(const struct config *config);
void sites_set(struct config *config, unsigned sites);
struct cJSON *sites_json(unsigned sites); /* array of strings, which the caller deletes */

/* Pass over the first micro-batches with one more operation in float32. Its error is to be compared
 * with pass.first_error. */
struct audit_trial {
    bool made;
    double gradient_error;
};

struct audit_format {
    bool made;
    enum dtype dtype;
    struct config config; /* the subject's config in this format, with the needed settings */
    bool usable;          /* everything is finite with them, at some loss scale */
    unsigned given;       /* sites of the user's config */
    unsigned needed;      /* sites without which something is infinite at every loss scale */
    bool needs_residual;  /* autocast.residual had to change from "lower" to "float32" */
    /* fp16 only, exponents of two. predicted_scale: limit set by the largest stored gradient of the
     * fp32 pass. safe_scale: largest scale at which a pass in fp16 was finite. */
    bool predicts;
    int predicted_scale, safe_scale;
    struct audit_pass pass; /* at the smaller of the run's loss scale and the safe one */
    struct audit_trial trials[AUTOCAST_SITE_COUNT]; /* indexed by the added operation */
};

/* Audits dtype (bf16 or fp16) against the reference. Returns RESULT_STOPPED after a signal. The
 * format is to be freed in every case. */
int audit_format_run(struct audit_format *format, enum dtype dtype, struct subject *subject,
                     const struct audit_pass *reference, struct error *error);
void audit_format_free(struct audit_format *format);

/* Sets *magnitudes to those, in fp32, of the gradients that the format stores in 16 bit. */
void audit_format_gradients(struct magnitudes *magnitudes, const struct audit_format *format,
                            const struct audit_pass *reference);

/* Returns the fraction of the gradients' error that the trial removes, at most 1 and negative if
 * the error grows; 0 if the trial was not made. */
double audit_format_removed(const struct audit_format *format, enum autocast_site operation);
