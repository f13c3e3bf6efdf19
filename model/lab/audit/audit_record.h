/* What is known of one tensor in one precision: its magnitudes, and how far it is from fp32.
 *
 * Magnitudes are of all values. The distance is taken from at most RECORD_SAMPLES of them, evenly
 * spaced, which is all that is kept of the fp32 values. */
#pragma once

#include <stdbool.h>

#include "kernels/dtype.h"
#include "model/lab/audit/magnitudes.h"

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
