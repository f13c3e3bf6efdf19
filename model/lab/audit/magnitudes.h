/* Magnitudes of tensor values: a histogram of their binary exponents, and the fractions that would
 * be zero or subnormal in fp16.
 *
 * Bin e counts the values with 2^e <= |v| < 2^(e+1). Exact powers of two are also counted
 * separately, because the limits of formats are powers of two; so every fraction below is exact.
 * Scales are powers of two. */
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

/* Exponents of fp16. Values up to 2^FP16_ZERO round to zero (the limit itself is a tie, rounded to
 * even). Values below 2^FP16_NORMAL are subnormal and lose bits. */
enum { FP16_ZERO = -25, FP16_NORMAL = -14 };

#define FP16_MAX      65504.0 /* largest finite value */
#define FP16_OVERFLOW 65520.0 /* smallest value that rounds to infinity */

struct magnitudes {
    uint64_t count, zeros, infinite; /* infinite includes NaN; neither it nor zero is in a bin */
    uint64_t bins[MAGNITUDE_BINS];   /* bin i has exponent MAGNITUDE_MIN + i */
    uint64_t powers[MAGNITUDE_BINS]; /* values of the bin that are exactly 2^e */
    float largest;                   /* amax of the finite values; 0: there are none */
};

void magnitudes_add(struct magnitudes *magnitudes, const float *values, size_t count);
void magnitudes_merge(struct magnitudes *magnitudes, const struct magnitudes *other);

/* Returns the fraction of the finite nonzero values that fp16 stores as zero after multiplication
 * by 2^scale; 0 if there are no such values. */
double magnitudes_lost(const struct magnitudes *magnitudes, int scale);

/* Returns the fraction that fp16 stores as a subnormal number, which loses bits. */
double magnitudes_subnormal(const struct magnitudes *magnitudes, int scale);

/* Returns how often the largest value, times 2^scale, can be doubled in fp16:
 * log2(65504 / (largest * 2^scale)), negative if it overflows. INFINITY if all values are zero,
 * -INFINITY if one is not finite. */
double magnitudes_headroom(const struct magnitudes *magnitudes, int scale);

/* Sets *scale to the exponent, within -126..127, of the largest power of two by which all values
 * can be multiplied without overflow in fp16. Returns false if all values are zero or one is not
 * finite. */
bool magnitudes_safe_scale(const struct magnitudes *magnitudes, int *scale);

/* Sets the range of exponents that occur. Returns false if there are none. */
bool magnitudes_range(const struct magnitudes *magnitudes, int *lowest, int *highest);

/* Record of a tensor in one precision. Magnitudes cover all values. The difference from fp32 is
 * estimated from at most RECORD_SAMPLES evenly spaced values, the only stored fp32 values. */
enum { RECORD_SAMPLES = 1 << 16 };

struct record {
    bool seen;
    enum dtype stored;
    struct magnitudes magnitudes; /* stored values, gradients include the loss scale */
    /* Estimated sums of squares over all values, without the loss scale: of the difference from the
     * reference, of the reference, and of these values where the reference has samples. */
    double difference, reference, own;
    float *samples; /* stb_ds array [repetitions][sample_count], only in the fp32 pass */
    int64_t sample_count, stride;
};

/* Elements from `first` on of a tensor of `total` elements, in micro-batch `batch` of `batches`. */
struct record_values {
    const float *values; /* [count] */
    int64_t first, count, total;
    int batch, batches;
    float unscale; /* 1 / loss scale for gradients, otherwise 1 */
};

/* Adds values to the record and compares them with `reference`, the record of the same tensor in
 * fp32. If reference is NULL, this is the reference and keeps the samples. */
void record_add(struct record *record, const struct record *reference,
                const struct record_values *values);

/* Returns the root mean square of the difference from fp32 over that of the fp32 values. 0 if
 * nothing differs, INFINITY if something is not finite or the reference is zero. */
double record_error(const struct record *record);

/* Returns the same for sums of squares over several records. */
double relative_error(double difference, double reference);
