#include "model/lab/audit/magnitudes.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include <stb/stb_ds.h>

/* Returns the binary exponent of a finite nonzero number. */
static int exponent_of(uint32_t bits) {
    int field = (int)(bits >> 23);
    return field > 0 ? field - 127 : 31 - __builtin_clz(bits) + MAGNITUDE_MIN;
}

static bool is_power(uint32_t bits) {
    uint32_t fraction = bits & 0x7fffff;
    return bits >> 23 ? fraction == 0 : (fraction & (fraction - 1)) == 0;
}

void magnitudes_add(struct magnitudes *magnitudes, const float *values, size_t count) {
    uint32_t largest = 0;
    memcpy(&largest, &magnitudes->largest, sizeof largest);
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0x7fffffff;
        if (bits == 0) {
            magnitudes->zeros++;
        } else if (bits >= 0x7f800000) {
            magnitudes->infinite++;
        } else {
            int bin = exponent_of(bits) - MAGNITUDE_MIN;
            magnitudes->bins[bin]++;
            magnitudes->powers[bin] += is_power(bits);
            if (bits > largest) largest = bits; /* nonnegative floats compare like their bits */
        }
    }
    magnitudes->count += count;
    memcpy(&magnitudes->largest, &largest, sizeof largest);
}

void magnitudes_merge(struct magnitudes *magnitudes, const struct magnitudes *other) {
    magnitudes->count += other->count;
    magnitudes->zeros += other->zeros;
    magnitudes->infinite += other->infinite;
    for (int i = 0; i < MAGNITUDE_BINS; i++) {
        magnitudes->bins[i] += other->bins[i];
        magnitudes->powers[i] += other->powers[i];
    }
    if (other->largest > magnitudes->largest) magnitudes->largest = other->largest;
}

/* Returns the number of nonzero values below 2^exponent. */
static uint64_t below(const struct magnitudes *magnitudes, int exponent) {
    uint64_t total = 0;
    int end = exponent - MAGNITUDE_MIN;
    for (int i = 0; i < end && i < MAGNITUDE_BINS; i++) total += magnitudes->bins[i];
    return total;
}

static double share(const struct magnitudes *magnitudes, uint64_t part) {
    uint64_t finite = magnitudes->count - magnitudes->zeros - magnitudes->infinite;
    return finite > 0 ? (double)part / (double)finite : 0;
}

static uint64_t lost(const struct magnitudes *magnitudes, int scale) {
    int border = FP16_ZERO - scale;
    bool exists = border >= MAGNITUDE_MIN && border <= MAGNITUDE_MAX;
    return below(magnitudes, border) + (exists ? magnitudes->powers[border - MAGNITUDE_MIN] : 0);
}

double magnitudes_lost(const struct magnitudes *magnitudes, int scale) {
    return share(magnitudes, lost(magnitudes, scale));
}

double magnitudes_subnormal(const struct magnitudes *magnitudes, int scale) {
    return share(magnitudes, below(magnitudes, FP16_NORMAL - scale) - lost(magnitudes, scale));
}

double magnitudes_headroom(const struct magnitudes *magnitudes, int scale) {
    if (magnitudes->infinite > 0) return -INFINITY;
    if (magnitudes->largest == 0) return INFINITY;
    return log2(FP16_MAX / (double)magnitudes->largest) - scale;
}

bool magnitudes_safe_scale(const struct magnitudes *magnitudes, int *scale) {
    if (magnitudes->infinite > 0 || magnitudes->largest == 0) return false;
    int exponent = (int)floor(log2(FP16_OVERFLOW / (double)magnitudes->largest));
    while (ldexp((double)magnitudes->largest, exponent) >= FP16_OVERFLOW) exponent--;
    while (ldexp((double)magnitudes->largest, exponent + 1) < FP16_OVERFLOW) exponent++;
    *scale = exponent < -126 ? -126 : exponent > 127 ? 127 : exponent;
    return true;
}

bool magnitudes_range(const struct magnitudes *magnitudes, int *lowest, int *highest) {
    bool found = false;
    for (int i = 0; i < MAGNITUDE_BINS; i++) {
        if (magnitudes->bins[i] == 0) continue;
        if (!found) *lowest = MAGNITUDE_MIN + i;
        *highest = MAGNITUDE_MIN + i;
        found = true;
    }
    return found;
}

/* The stride is odd, so that samples cover all columns if the width is a power of two. */
static int64_t choose_stride(int64_t total) {
    int64_t stride = (total + RECORD_SAMPLES - 1) / RECORD_SAMPLES;
    return stride | 1;
}

void record_add(struct record *record, const struct record *reference,
                const struct record_values *values) {
    const float *truth = NULL;
    if (!record->seen) {
        record->seen = true;
        record->stride = choose_stride(values->total);
        record->sample_count = (values->total - 1) / record->stride + 1;
        if (!reference) arrsetlen(record->samples, values->batches * record->sample_count);
    }
    magnitudes_add(&record->magnitudes, values->values, (size_t)values->count);
    int64_t stride = record->stride, end = values->first + values->count;
    int64_t skipped = values->batch * record->sample_count;
    if (reference) {
        assert(reference->seen && reference->sample_count == record->sample_count);
        truth = reference->samples + skipped;
    }
    for (int64_t i = (values->first + stride - 1) / stride; i * stride < end; i++) {
        float value = values->values[i * stride - values->first] * values->unscale;
        if (!reference) record->samples[skipped + i] = value;
        double expected = (double)(reference ? truth[i] : value);
        double difference = (double)value - expected;
        record->difference += difference * difference * (double)stride;
        record->own += (double)value * (double)value * (double)stride;
        record->reference += expected * expected * (double)stride;
    }
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
