#include "model/lab/audit/audit_record.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

/* An odd stride meets all columns of a matrix whose rows are a power of two long. */
static int64_t choose_stride(int64_t total) {
    int64_t stride = (total + RECORD_SAMPLES - 1) / RECORD_SAMPLES;
    return stride | 1;
}

static int begin(struct record *record, const struct record *reference, int64_t total,
                 int batches) {
    record->seen = true;
    record->stride = choose_stride(total);
    record->sample_count = (total - 1) / record->stride + 1;
    if (reference) return 0;
    record->samples = malloc((size_t)(batches * record->sample_count) * sizeof *record->samples);
    return record->samples ? 0 : -1;
}

int record_add(struct record *record, const struct record *reference,
               const struct record_values *values) {
    if (!record->seen && begin(record, reference, values->total, values->batches)) return -1;
    magnitudes_add(&record->magnitudes, values->values, (size_t)values->count);
    int64_t stride = record->stride, end = values->first + values->count;
    const float *truth = NULL;
    if (reference) {
        assert(reference->seen && reference->sample_count == record->sample_count);
        truth = reference->samples + values->batch * record->sample_count;
    }
    for (int64_t i = (values->first + stride - 1) / stride; i * stride < end; i++) {
        float value = values->values[i * stride - values->first] * values->unscale;
        if (!reference) record->samples[values->batch * record->sample_count + i] = value;
        double expected = (double)(reference ? truth[i] : value);
        double difference = (double)value - expected;
        record->difference += difference * difference * (double)stride;
        record->reference += expected * expected * (double)stride;
    }
    return 0;
}

double relative_error(double difference, double reference) {
    if (difference == 0) return 0;
    double error = sqrt(difference / reference);
    return isfinite(error) ? error : INFINITY;
}

double record_error(const struct record *record) {
    if (record->magnitudes.infinite > 0) return INFINITY;
    return relative_error(record->difference, record->reference);
}
