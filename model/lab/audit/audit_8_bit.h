/* What fp8 does to a model: how far each operand of its linear layers is from what was rounded, and
 * how far loss and gradients get from those of fp32, by recipe and with one more layer in bf16. */
#pragma once

#include "data/base/error.h"
#include "model/lab/audit/audit_subject.h"
#include "model/quantization.h"

/* Of one operand, over all layers and batches. Shares are of its values that are not zero. */
struct eight_bit_operand {
    double to_zero;   /* share that became zero */
    double saturated; /* share that was beyond the largest value */
    double snr;       /* signal to noise, dB: 10 log10(sum x^2 / sum (x - rounded)^2) */
    double worst_snr; /* the same of the layer where it is least */
    int worst_layer;
};

/* A setting that was tried, against fp32. */
struct eight_bit_trial {
    char name[48];
    double loss;           /* mean of the batches */
    double gradient_error; /* |difference| / |gradient|, of all parameters */
};

enum { EIGHT_BIT_TRIALS_MAX = 16 };

struct eight_bit_audit {
    char config[128]; /* its name */
    double loss;      /* of fp32 */
    int batches;
    bool rounds[LINEAR_COUNT]; /* layers that the config rounds */
    enum dtype dtype[QUANTIZED_KINDS];
    struct eight_bit_operand operands[LINEAR_COUNT][QUANTIZED_KINDS]; /* by the config's recipe */
    int trial_count;
    struct eight_bit_trial trials[EIGHT_BIT_TRIALS_MAX]; /* bf16, the config's fp8, then others */
};

/* Looks at config from the weights at `from`, as run_audit does. "delayed" has no history here, so
 * it is as "tensor". Returns RESULT_STOPPED when *stop asked for it. */
int eight_bit_audit_run(struct eight_bit_audit *audit, const struct config *config,
                        const char *from, int repetitions, const volatile sig_atomic_t *stop,
                        struct error *error);

/* Tables of at most 80 columns, and what to make of them. */
void eight_bit_audit_print(FILE *out, const struct eight_bit_audit *audit);

/* audit_fp8.html: the same as a page. */
void eight_bit_audit_print_html(FILE *out, const struct eight_bit_audit *audit);

/* audit_fp8.json; shares and errors are parts of 1, SNR is in dB, null is not finite:
 *
 *     {
 *       "config", "repetitions", "loss": of fp32,
 *       "operands": [{"layer": "qkv", "operand": "input", "format": "e4m3", "to_zero", "saturated",
 *                     "snr", "worst_snr", "worst_layer"}, ...],
 *       "trials": [{"name", "loss", "gradient_error"}, ...],
 *       "advice": [text, ...]
 *     } */
void eight_bit_audit_print_json(FILE *out, const struct eight_bit_audit *audit);
