/* A 16-bit format under audit: what it needs to work at all, and what it costs in exactness. */
#pragma once

#include "data/util/error.h"
#include "model/lab/audit/audit_pass.h"

/* Words of autocast.float32 are sets of bits, by enum autocast_site. */
unsigned words_of_config(const struct config *config);
void words_set(struct config *config, unsigned words);
struct cJSON *words_json(unsigned words); /* a list of strings, which the caller deletes */

/* The first micro-batches with one more operation in float32; its error compares with
 * pass.first_error. */
struct audit_trial {
    bool made;
    double gradient_error;
};

struct audit_format {
    bool made;
    enum dtype dtype;
    struct config config; /* the subject's in this format, with what is needed */
    bool usable;          /* everything is finite with what is needed, at some scale */
    unsigned given;       /* words of the user's config */
    unsigned needed;      /* words without which something is infinite at every scale */
    bool needs_residual;  /* autocast.residual was "lower" and has to be "float32", likewise */
    /* fp16 only, exponents of two: what the largest stored gradient of the fp32 pass allows, and
     * what a pass in fp16 was in fact finite at, while it was not at twice that. */
    bool predicts;
    int predicted_scale, safe_scale;
    struct audit_pass pass; /* at the run's scale, or the safe one if that is smaller */
    struct audit_trial trials[AUTOCAST_SITE_COUNT]; /* by the word that is added */
};

/* Looks at dtype (bf16 or fp16) next to the reference. Returns RESULT_STOPPED when it was. The
 * format is to be freed whatever comes back. */
int audit_format_run(struct audit_format *format, enum dtype dtype, struct subject *subject,
                     const struct audit_pass *reference, struct error *error);
void audit_format_free(struct audit_format *format);

/* The magnitudes, in fp32, of the gradients that the format would store in 16 bit. */
void audit_format_gradients(struct magnitudes *magnitudes, const struct audit_format *format,
                            const struct audit_pass *reference);

/* The part of the gradients' error that the trial removes, 0..1; below 0 if it adds. 0 if the trial
 * was not made. */
double audit_format_removed(const struct audit_format *format, enum autocast_site operation);
