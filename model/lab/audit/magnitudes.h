/* Magnitudes of the values of tensors: a histogram of their binary exponents, and the shares that
 * fp16 would make zero or subnormal.
 *
 * Bin e counts the values with 2^e <= |v| < 2^(e+1). Powers of two themselves are counted apart as
 * well, since a border of a format is one: every share below is exact. Scales are powers of two. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

enum {
    MAGNITUDE_MIN = -149, /* the smallest subnormal of fp32 */
    MAGNITUDE_MAX = 127,
    MAGNITUDE_BINS = MAGNITUDE_MAX - MAGNITUDE_MIN + 1,
};

/* Exponents of fp16. What is at most 2^FP16_ZERO rounds to zero (the border itself is a tie and
 * goes to even), what is below 2^FP16_NORMAL is subnormal and loses bits. */
enum { FP16_ZERO = -25, FP16_NORMAL = -14 };

#define FP16_MAX      65504.0 /* the largest number */
#define FP16_OVERFLOW 65520.0 /* from here on rounding gives infinity */

struct magnitudes {
    uint64_t count, zeros, infinite; /* infinite: NaN too; both are in no bin */
    uint64_t bins[MAGNITUDE_BINS];   /* of exponent MAGNITUDE_MIN + i */
    uint64_t powers[MAGNITUDE_BINS]; /* those of the bin that are 2^e exactly */
    float largest;                   /* |v| of the finite ones; 0: there is none */
};

void magnitudes_add(struct magnitudes *magnitudes, const float *values, size_t count);
void magnitudes_merge(struct magnitudes *magnitudes, const struct magnitudes *other);

/* Returns the share of the values that are neither zero nor infinite that fp16 stores as zero after
 * they were multiplied by 2^scale. 0 if there are none. */
double magnitudes_lost(const struct magnitudes *magnitudes, int scale);

/* Returns the share that it stores as a subnormal number, which loses bits. */
double magnitudes_subnormal(const struct magnitudes *magnitudes, int scale);

/* Returns how often the largest value, times 2^scale, can be doubled within fp16:
 * log2(65504 / largest), below 0 if it overflows. INFINITY where there is nothing but zeros,
 * -INFINITY where something is infinite itself. */
double magnitudes_headroom(const struct magnitudes *magnitudes, int scale);

/* The largest power of two by which all values can be multiplied before one overflows in fp16: the
 * exponent, within -126..127. False if there is none: nothing but zeros, or infinite values. */
bool magnitudes_safe_scale(const struct magnitudes *magnitudes, int *scale);

/* The exponents that occur. False if none does. */
bool magnitudes_range(const struct magnitudes *magnitudes, int *lowest, int *highest);

/* A tensor in one precision. Magnitudes are of all values; its distance from fp32 is taken from
 * at most RECORD_SAMPLES of them, evenly spaced, which is all that is kept of the fp32 values. */
enum { RECORD_SAMPLES = 1 << 16 };

struct record {
    bool seen;
    enum dtype stored;
    struct magnitudes magnitudes; /* of the values as stored: gradients times the loss scale */
    /* Sums of squares over the values without the loss scale, as estimated from the samples. */
    double difference, reference;
    float *samples; /* of the fp32 run: [repetitions][sample_count] */
    int64_t sample_count, stride;
};

/* Elements first.. of a tensor of `total` elements, in micro-batch `batch` of `batches`. */
struct record_values {
    const float *values; /* [count] */
    int64_t first, count, total;
    int batch, batches;
    float unscale; /* what gradients are multiplied by to take the loss scale away; else 1 */
};

/* Adds values to the record. With `reference`, a record of the same tensor in fp32, they are
 * compared; without, this is the reference and the samples are kept. Returns -1 if there is no
 * memory for them. */
int record_add(struct record *record, const struct record *reference,
               const struct record_values *values);

/* Root mean square of the difference from fp32 over that of the fp32 values; 0 if nothing differs,
 * INFINITY if something is not finite, or nothing was there to compare with. */
double record_error(const struct record *record);

/* The same for sums of several. */
double relative_error(double difference, double reference);
