/* Audits: the effect of bf16 and fp16 on a run, operation by operation, and of the precisions that
 * quantize the operands of linear layers. Each makes a report, one JSON object; the terminal and
 * the page of scripts/report.py show tables made from it. README.md lists its members. */
#pragma once

#include <signal.h>

#include "data/util/error.h"
#include "model/lab/audit/audit_pass.h"

/* ---- one 16-bit format: the settings it needs to stay finite, and its errors */

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

/* Sets *magnitudes to those, in fp32, of the gradients that the format stores in 16 bit. */
void audit_format_gradients(struct magnitudes *magnitudes, const struct audit_format *format,
                            const struct audit_pass *reference);

/* Returns the fraction of the gradients' error that the trial removes, at most 1 and negative if
 * the error grows; 0 if the trial was not made. */
double audit_format_removed(const struct audit_format *format, enum autocast_site operation);

/* ---- both formats */

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
    struct update all, *parameters; /* stb_ds array, in the order of model->list */
};

/* Results of an audit. */
struct audit {
    struct subject subject;
    struct audit_pass reference; /* fp32 pass */
    struct audit_update update;
    struct audit_format formats[AUDIT_FORMATS]; /* `made` is true for the wanted ones */
};

/* Audits config with the weights at `from` (a checkpoint or a Hugging Face model directory; NULL:
 * model.init_from or initial weights) in the wanted formats. Returns RESULT_STOPPED after a signal
 * in *stop, -1 with a message. The audit is to be freed in every case. */
int audit_run(struct audit *audit, const struct config *config, const char *from,
              const bool wanted[AUDIT_FORMATS], int repetitions, const volatile sig_atomic_t *stop,
              struct error *error);
void audit_free(struct audit *audit);

/* ---- reports */

/* Returns the report of bf16 and fp16, with advice; the caller deletes it. */
struct cJSON *audit_report(const struct audit *audit);

/* Prints a report in 80 columns: the worst layer of each kind of tensor. */
void audit_print(FILE *out, const struct cJSON *report);

/* ---- precisions that quantize */

/* Audits config in a precision that quantizes, with the weights at `from` (see audit_run), and
 * makes the report, which the caller deletes if 0 is returned. The recipe "delayed" of
 * fp8 has no amax history here and behaves like "tensor". Returns RESULT_STOPPED after a signal in
 * *stop, -1 with a message. */
int quantized_audit_run(struct cJSON **report, const struct config *config,
                        enum config_precision precision, const char *from, int repetitions,
                        const volatile sig_atomic_t *stop, struct error *error);

/* Returns advice from the trials as an array of sentences. Trial 1 is the precision as configured.
 * The trials with a member "config" leave one more part in bf16: that is how. */
struct cJSON *quantized_advice(const struct cJSON *trials, enum config_precision precision);
