/* Advice from an audit's figures, in plain words and as a block of config.
 *
 * An error of the gradients matters next to how much they change anyway from one batch to the next
 * (the noise of a step: that of a micro-batch over the square root of grad_accum_steps). The
 * tolerance is a tenth of it, which adds one hundredth to its variance, but at least 1 % and at
 * most 10 %; 2 % if the noise is not known.
 *
 * Words of autocast.float32: those the user gave; those without which something is infinite; and,
 * while the error is above the tolerance, each that alone removes a quarter of it or more. A
 * residual stream that the user stores in 16 bit becomes float32 where it is infinite otherwise.
 *
 * Format: a 16-bit one is fit if it is finite and its error, with these words, within the
 * tolerance. Of the fit ones that the device has fast products for, bf16 goes before fp16: its
 * range is that of fp32, so there is no loss scale to go wrong. Else fp32. */
#pragma once

#include "model/lab/audit/audit.h"

/* The advised start is half the largest safe scale: of the batches that were not looked at some
 * have larger gradients. With growth_interval 5 on the built-in text and on Shakespeare, the
 * dynamic scale of configs/fp16.json was between half and twice the safe one of the same step; at
 * half of it next to no gradient underflows either. */
enum { ADVICE_MARGIN = 1 };

struct advice_format {
    bool fit;
    unsigned words; /* of autocast.float32 */
    double error;   /* of the gradients, with the words as far as it was measured */
    int init_scale; /* fp16: the exponent; never below the config's loss_scale.min_scale */
};

struct advice {
    enum dtype format;
    double tolerance;
    struct advice_format formats[AUDIT_FORMATS];
    struct cJSON *texts; /* strings: the format first, then loss scale, words, masters */
};

/* The caller deletes advice->texts. */
void advice_make(struct advice *advice, const struct audit *audit);

/* Returns a config for --config with the keys that the advice is about; the caller deletes it. */
struct cJSON *advice_config(const struct advice *advice, const struct audit *audit, int format);
