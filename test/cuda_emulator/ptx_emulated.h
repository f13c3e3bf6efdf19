/* Part of cuda_emulator.h: the functions of kernels/cuda/ptx.h on the fragments of all 32 lanes,
 * laid out as in the PTX ISA. Keep both files in step. */
#ifndef TEST_CUDA_EMULATOR_PTX_EMULATED_H
#define TEST_CUDA_EMULATOR_PTX_EMULATED_H

#include "test/cuda_emulator/tensor_core.h"

namespace emu {

EMU_NO_TSAN static inline float bf16_value(uint16_t bits) {
    return __uint_as_float((uint32_t)bits << 16);
}
EMU_NO_TSAN static inline float f16_value(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}
EMU_NO_TSAN static inline uint16_t half_of(const uint32_t *packed, int i) {
    return (uint16_t)(packed[i / 2] >> i % 2 * 16);
}

struct mma {
    const uint32_t *a, *b;
    const float *c;
    float *d;
};

/* Lane l has group l / 4 and index l % 4 in it. Element i of its A: row group, + 8 for i = 2, 3,
 * 6, 7; column 2 index + i % 2, + 8 from i = 4 on. B: column group; row 2 index + i % 2, + 8
 * from i = 2 on. C and D: row group, + 8 from i = 2 on; column 2 index + i % 2. */
template <float (*value)(uint16_t), tensor_core_format format>
EMU_NO_TSAN static void mma_all(unsigned mask, void **payload, site at) {
    if (mask != ~0u) fail(at, "mma needs all 32 lanes");
    float a[16][16], b[16][8], d[16][8];
    for (int l = 0; l < 32; l++) {
        const mma *m = static_cast<mma *>(payload[l]);
        int group = l / 4, column = l % 4 * 2;
        for (int i = 0; i < 8; i++)
            a[group + i / 2 % 2 * 8][column + i % 2 + i / 4 * 8] = value(half_of(m->a, i));
        for (int i = 0; i < 4; i++) {
            b[column + i % 2 + i / 2 * 8][group] = value(half_of(m->b, i));
            d[group + i / 2 * 8][column + i % 2] = m->c[i];
        }
    }
    if (tensor_cores_truncate())
        for (int i = 0; i < 16; i++) tensor_core_add(d[i], 8, b[0], 8, format, a[i], format, 16);
    else
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++) {
        const mma *m = static_cast<mma *>(payload[l]);
        for (int i = 0; i < 4; i++) m->d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    }
}

template <float (*value)(uint16_t), tensor_core_format format>
EMU_NO_TSAN static inline void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2],
                                            const float c[4], site at) {
    mma m{a, b, c, d};
    collective("mma", ~0u, &m, mma_all<value, format>, at);
}

/* The same with 8 products of TF32. Lane l's A: row group, + 8 for i = 1, 3; column l % 4, + 4 for
 * i = 2, 3. B: column group; row l % 4, + 4 for i = 1. */
EMU_NO_TSAN static void mma_tf32_all(unsigned mask, void **payload, site at) {
    if (mask != ~0u) fail(at, "mma needs all 32 lanes");
    float a[16][8], b[8][8], d[16][8];
    for (int l = 0; l < 32; l++) {
        const mma *m = static_cast<mma *>(payload[l]);
        for (int i = 0; i < 6; i++)
            if ((i < 4 ? m->a[i] : m->b[i - 4]) & 0x1fff) fail(at, "mma: not rounded to TF32");
        int group = l / 4, column = l % 4;
        for (int i = 0; i < 4; i++) {
            a[group + i % 2 * 8][column + i / 2 * 4] = __uint_as_float(m->a[i]);
            d[group + i / 2 * 8][column * 2 + i % 2] = m->c[i];
        }
        for (int i = 0; i < 2; i++) b[column + i * 4][group] = __uint_as_float(m->b[i]);
    }
    if (tensor_cores_truncate())
        for (int i = 0; i < 16; i++) tensor_core_add(d[i], 8, b[0], 8, TF32, a[i], TF32, 8);
    else
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 8; k++)
                for (int j = 0; j < 8; j++) d[i][j] += a[i][k] * b[k][j];
    for (int l = 0; l < 32; l++) {
        const mma *m = static_cast<mma *>(payload[l]);
        for (int i = 0; i < 4; i++) m->d[i] = d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
    }
}

struct ldmatrix_lane {
    uint16_t row[8]; /* read by the lane whose address it is, so that sanitizers attribute the
                        access to it */
    unsigned offset;
    uint32_t *r;
};

/* Lanes 8 m .. 8 m + 7 give the row addresses of matrix m. A row covers 4 banks: 8 rows whose
 * offsets modulo 128 bytes all differ take one cycle. */
template <bool trans> EMU_NO_TSAN static void ldmatrix_all(unsigned mask, void **payload, site at) {
    if (mask != ~0u) fail(at, "ldmatrix needs all 32 lanes");
    ldmatrix_lane *lanes[32];
    for (int l = 0; l < 32; l++) lanes[l] = static_cast<ldmatrix_lane *>(payload[l]);
    unsigned conflicts = 0;
    for (int m = 0; m < 4; m++) {
        ldmatrix_lane **rows = lanes + 8 * m;
        unsigned uses[8] = {}, cycles = 0;
        for (int i = 0; i < 8; i++) {
            unsigned count = ++uses[rows[i]->offset / 16 % 8];
            for (int j = 0; j < i; j++) /* two lanes that read the same row cause one read */
                if (rows[j]->offset == rows[i]->offset) {
                    count = --uses[rows[i]->offset / 16 % 8];
                    break;
                }
            cycles = count > cycles ? count : cycles;
        }
        conflicts += cycles - 1;
        for (int l = 0; l < 32; l++) {
            int i = l / 4, j = l % 4 * 2;
            uint16_t low = trans ? rows[j]->row[i] : rows[i]->row[j];
            uint16_t high = trans ? rows[j + 1]->row[i] : rows[i]->row[j + 1];
            lanes[l]->r[m] = low | (uint32_t)high << 16;
        }
    }
    count_ldmatrix(conflicts);
}

template <bool trans> static inline void ldmatrix(uint32_t r[4], const void *row, site at) {
    ldmatrix_lane lane;
    check_aligned("ldmatrix", row, 16, at);
    memcpy(lane.row, row, sizeof lane.row);
    lane.offset = shared_offset(row);
    lane.r = r;
    collective("ldmatrix", ~0u, &lane, ldmatrix_all<trans>, at);
}

struct stmatrix_lane {
    uint16_t row[8]; /* written by the lane whose address it is */
    const uint32_t *r;
};

EMU_NO_TSAN static inline void stmatrix_all(unsigned mask, void **payload, site at) {
    if (mask != ~0u) fail(at, "stmatrix needs all 32 lanes");
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < 4; m++) {
            uint32_t pair = static_cast<stmatrix_lane *>(payload[l])->r[m];
            uint16_t *to = static_cast<stmatrix_lane *>(payload[m * 8 + l / 4])->row + l % 4 * 2;
            to[0] = (uint16_t)pair;
            to[1] = (uint16_t)(pair >> 16);
        }
}

static inline void stmatrix(void *row, const uint32_t r[4], site at) {
    stmatrix_lane lane;
    check_aligned("stmatrix", row, 16, at);
    lane.r = r;
    collective("stmatrix", ~0u, &lane, stmatrix_all, at);
    memcpy(row, lane.row, sizeof lane.row);
}

} // namespace emu

EMU_NO_TSAN static inline void mma_m16n8k16_bf16_f32(float d[4], const uint32_t a[4],
                                                     const uint32_t b[2], const float c[4],
                                                     EMU_SITE) {
    emu::mma_m16n8k16<emu::bf16_value, emu::BF16>(d, a, b, c, EMU_HERE);
}
EMU_NO_TSAN static inline void mma_m16n8k16_f16_f32(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], const float c[4],
                                                    EMU_SITE) {
    emu::mma_m16n8k16<emu::f16_value, emu::F16>(d, a, b, c, EMU_HERE);
}
EMU_NO_TSAN static inline void mma_m16n8k8_tf32_f32(float d[4], const uint32_t a[4],
                                                    const uint32_t b[2], const float c[4],
                                                    EMU_SITE) {
    emu::mma m{a, b, c, d};
    emu::collective("mma", ~0u, &m, emu::mma_tf32_all, EMU_HERE);
}
static inline uint32_t tf32_bits(float value) {
    uint32_t bits = __float_as_uint(value);
    if (isfinite(value)) bits += 0x1000; /* half of the last bit kept; a carry may give infinity */
    return bits & ~0x1fffu;
}
static inline uint32_t tf32_bits_of_small(float value) {
    return (__float_as_uint(value) + 0x1000) & ~0x1fffu;
}
static inline void ldmatrix_x4(uint32_t r[4], const void *row, EMU_SITE) {
    emu::ldmatrix<false>(r, row, EMU_HERE);
}
static inline void ldmatrix_x4_trans(uint32_t r[4], const void *row, EMU_SITE) {
    emu::ldmatrix<true>(r, row, EMU_HERE);
}
static inline void cp_async_16(void *dst, const void *src, bool valid = true, EMU_SITE) {
    emu::cp_async(dst, src, 16, valid ? 16 : 0, EMU_HERE);
}
static inline void cp_async_8(void *dst, const void *src, EMU_SITE) {
    emu::cp_async(dst, src, 8, 8, EMU_HERE);
}
static inline void cp_async_commit() {
    emu::defer_commit();
}
template <int pending> static inline void cp_async_wait() {
    emu::defer_wait(pending);
}
static inline void named_barrier(int id, int count, EMU_SITE) {
    emu::barrier(id, count, "named_barrier", EMU_HERE);
}
static inline int semaphore_wait(const int *semaphore, int least, EMU_SITE) {
    return emu::semaphore_wait(semaphore, least, EMU_HERE);
}
static inline void semaphore_set(int *semaphore, int value) {
    emu::semaphore_set(semaphore, value);
}
/* The emulator accepts any address as one in shared memory. */
typedef char *shared_pointer;
static inline shared_pointer shared_pointer_to(const void *p) {
    return static_cast<char *>(const_cast<void *>(p));
}
static inline uint32_t load_shared(shared_pointer from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}
static inline shared_pointer opaque_address(shared_pointer pointer) {
    return pointer;
}
template <typename T> static inline const T *opaque(const T *global) {
    return global;
}

static inline float exp2_approx(float x) {
    float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y; /* NaN stays NaN */
}
static inline float reciprocal_approx(float x) {
    float y = 1.0f / x;
    return fabsf(y) < 0x1p-126f ? copysignf(0.0f, y) : y;
}
/* The value among those of the format that is nearest, and among two the one with an even code:
 * found by search, so that no step is shared with kernels/float8.h. `codes` finite ones: of E4M3,
 * code 0x7f is a NaN, and of E5M2 those from 0x7c on are infinity and NaNs. */
static inline uint32_t emu_float8_code(float x, int fraction_bits, int bias, unsigned codes) {
    if (isnan(x)) return 0x7f;
    auto value = [=](unsigned code) {
        int exponent = (int)(code >> fraction_bits), one = 1 << fraction_bits;
        int fraction = (int)code & (one - 1);
        return exponent ? ldexp(one + fraction, exponent - bias - fraction_bits)
                        : ldexp(fraction, 1 - bias - fraction_bits);
    };
    double size = fabs((double)x);
    unsigned low = 0, high = codes - 1; /* value(low) <= size < value(high), except at the end */
    if (size >= value(high)) low = high;
    while (high - low > 1) {
        unsigned middle = (low + high) / 2;
        if (value(middle) <= size) low = middle;
        else high = middle;
    }
    double below = size - value(low), above = value(high) - size;
    unsigned code = below < above || (below == above && low % 2 == 0) || low == high ? low : high;
    return code | (signbit(x) ? 0x80u : 0);
}
#define FLOAT8_INSTRUCTIONS (emu::capability() >= 89)
static inline uint32_t e4m3_pair(float low, float high) {
    return emu_float8_code(low, 3, 7, 0x7f) | emu_float8_code(high, 3, 7, 0x7f) << 8;
}
static inline uint32_t e5m2_pair(float low, float high) {
    return emu_float8_code(low, 2, 15, 0x7c) | emu_float8_code(high, 2, 15, 0x7c) << 8;
}
static inline int reread_thread_index() {
    return (int)threadIdx.x;
}
static inline int reread_block_index() {
    return (int)blockIdx.x;
}

#endif
