/* Absolute values are compared as fp32 bit patterns, which have the same order. bf16, the usual
 * dtype of linear layers' inputs, is compared as the upper halves of these patterns. */
#include "kernels/cpu/cpu.h"
#include "kernels/float8.h"

enum { BF16_INFINITE = 0x7f80 };
static const uint32_t INFINITE = 0x7f800000;

static uint16_t largest_bf16(const uint16_t *in, int64_t count) {
    uint16_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < count; i++) {
        uint16_t value = in[i] & 0x7fff;
        largest = value > largest ? value : largest;
    }
    return largest;
}

static uint16_t largest_finite_bf16(const uint16_t *in, int64_t count) {
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint16_t value = in[i] & 0x7fff;
        if (value < BF16_INFINITE && value > largest) largest = value;
    }
    return largest;
}

static struct amax amax_of_bf16(const uint16_t *in, int64_t count) {
    uint16_t largest = largest_bf16(in, count);
    bool bad = largest >= BF16_INFINITE;
    if (bad) largest = largest_finite_bf16(in, count);
    return (struct amax){(uint32_t)largest << 16, bad};
}

struct amax cpu_amax(const struct tensor *tensor, int64_t offset, int64_t count) {
    struct amax found = {0, 0};
    float buffer[CPU_BLOCK];
    if (tensor->dtype == DTYPE_BF16)
        return amax_of_bf16((const uint16_t *)tensor->data + offset, count);
    for (int64_t first = 0; first < count; first += CPU_BLOCK) {
        int64_t n = block_length(first, count, CPU_BLOCK);
        const float *values =
            dtype_widen(buffer, tensor->data, tensor->dtype, (size_t)(offset + first), (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = f32_bits(values[i]) & 0x7fffffff;
            if (bits >= INFINITE) found.not_finite = 1;
            else if (bits > found.largest) found.largest = bits;
        }
    }
    return found;
}

/* Merges without a lock in the usual case: the maximum is found early, and few later values exceed
 * it. */
void cpu_merge_amax(struct amax *track_amax, struct amax other) {
    uint32_t largest, not_finite;
#pragma omp atomic read
    largest = track_amax->largest;
#pragma omp atomic read
    not_finite = track_amax->not_finite;
    if (other.largest <= largest && other.not_finite <= not_finite) return;
#pragma omp critical(track_amax)
    {
#pragma omp atomic read
        largest = track_amax->largest;
        if (other.largest > largest) {
#pragma omp atomic write
            track_amax->largest = other.largest;
        }
        if (other.not_finite) {
#pragma omp atomic write
            track_amax->not_finite = 1;
        }
    }
}

void cpu_track_amax(struct amax *track_amax, const struct tensor *tensor, int64_t offset,
                    int64_t count) {
    if (track_amax) cpu_merge_amax(track_amax, cpu_amax(tensor, offset, count));
}

struct amax cpu_find_amax(const struct tensor *in, struct amax *track_amax, bool found) {
    int64_t count = tensor_count(in), blocks = blocks_of(count, CPU_BLOCK);
    uint32_t largest = 0, bad = 0;
    if (found) return *track_amax;
#pragma omp parallel for schedule(static) reduction(max : largest) reduction(max : bad)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t at = block * CPU_BLOCK;
        struct amax one = cpu_amax(in, at, block_length(at, count, CPU_BLOCK));
        largest = one.largest > largest ? one.largest : largest;
        bad = one.not_finite > bad ? one.not_finite : bad;
    }
    struct amax all = {largest, bad};
    if (track_amax) cpu_merge_amax(track_amax, all);
    return all;
}
