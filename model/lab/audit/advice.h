/* Advice from the figures of an audit, as sentences and as a block of config.
 *
 * Tolerance: an error of the gradients is compared with their noise from batch to batch. The noise
 * of a step is that of a micro-batch over the square root of grad_accum_steps. The tolerance is a
 * tenth of it, which adds one hundredth to its variance, but at least 1 % and at most 10 %. It is 2
 * % if the noise is unknown.
 *
 * Operations in autocast.float32: those of the config, and those without which a tensor is
 * infinite. If the error is above the tolerance, each operation is added that alone removes a
 * quarter of it. A 16-bit residual stream becomes float32 if it is infinite otherwise.
 *
 * Format: a 16-bit format is fit if it is finite and its error, with these operations, is within
 * the tolerance. Among the fit formats with fast matmuls on the device, bf16 is preferred to fp16:
 * it has the range of fp32 and needs no loss scale. If there is none, the advice is fp32.
 *
 * Divergence: a loss in fp32 of one nat more than that of equal chances for all tokens. Another
 * precision cannot mend it, so then nothing else is advised. */
#pragma once

#include "model/lab/audit/audit.h"

/* The advised init_scale is half the largest safe scale, because batches outside the audit may have
 * larger gradients. With growth_interval 5 on the built-in text and on Shakespeare, the dynamic
 * scale of configs/fp16.json was between half and twice the safe scale of the same step. At half of
 * it almost no gradient underflows. */
enum { ADVICE_MARGIN = 1 };

struct advice_format {
    bool fit;
    unsigned sites; /* operations of autocast.float32, as bits */
    double error;   /* error of the gradients, measured with at most one added operation */
    int init_scale; /* fp16: exponent of the scale, at least the config's loss_scale.min_scale */
};

enum { DIVERGENCE_TEXT_MAX = 500 };

struct advice {
    char diverged[DIVERGENCE_TEXT_MAX]; /* which figures are far off; "": it has not diverged */
    enum dtype format;
    double tolerance;
    struct advice_format formats[AUDIT_FORMATS];
    struct cJSON *texts; /* sentences about format, loss scale, operations and master weights */
};

/* Makes the advice. The caller deletes advice->texts. */
void advice_make(struct advice *advice, const struct audit *audit);

/* Returns the advised keys as a config for --config; the caller deletes it. */
struct cJSON *advice_config(const struct advice *advice, const struct audit *audit, int format);
