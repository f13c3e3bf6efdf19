/* Rounding to 16 bits, functions that the device computes in its own way, and packs of
 * storage.h. */
#include <float.h>

#include "kernels/cuda/quantize/float8_code.h"
#include "kernels/cuda/storage.h"
#include "test/cuda_emulator/tensor_core.h"
#include "test/cuda_emulator/test_emulator.h"

enum { NUMBER_THREADS = 256, PATTERNS = 1 << 16 };
#ifdef __SANITIZE_THREAD__
enum { STEP = 31 }; /* slow, and not the purpose of this sanitizer */
#else
enum { STEP = 1 };
#endif

static unsigned blocks_for(size_t count) {
    return (unsigned)((count + NUMBER_THREADS - 1) / NUMBER_THREADS);
}

/* ---- rounding, compared with a reference based on the two formats alone */

struct format {
    int fraction_bits, exponent_bits;
};
static const format FP16 = {10, 5}, BF16 = {7, 8};

/* Returns the value of finite bits; infinities become the next power of two. */
static double value_of(format f, unsigned bits) {
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
    int fraction = (int)bits & ((1 << f.fraction_bits) - 1);
    double magnitude =
        exponent == 0 ? ldexp(fraction, 1 - bias - f.fraction_bits)
                      : ldexp(fraction + (1 << f.fraction_bits), exponent - bias - f.fraction_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static unsigned infinity_of(format f) {
    return ((1u << f.exponent_bits) - 1) << f.fraction_bits;
}

template <class T> static __global__ void round_kernel(T *out, const float *in, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < count) out[i] = narrow<T>(in[i]);
}

template <class T> static __global__ void widen_kernel(float *out) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    uint16_t bits = (uint16_t)i;
    T value;
    memcpy((void *)&value, &bits, sizeof value);
    out[i] = widen(value);
}

/* Every value, and between it and the next: the midpoint, which rounds to even, and the values
 * on either side of the midpoint. */
template <class T> static void test_rounding(format f) {
    buffer<float> in = make_buffer<float>(8 * PATTERNS);
    buffer<uint16_t> out = make_buffer<uint16_t>(in.count);
    uint16_t *expected = (uint16_t *)calloc(in.count, sizeof *expected);
    size_t count = 0;
    for (unsigned bits = 0; bits < infinity_of(f); bits += STEP)
        for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000) {
            double low = value_of(f, bits), high = value_of(f, bits + 1);
            float middle = (float)((low + high) / 2);
            if (middle != (low + high) / 2) continue; /* bf16: below the smallest fp32 */
            const float values[] = {(float)low, nextafterf(middle, 0), middle,
                                    nextafterf(middle, INFINITY)};
            const unsigned rounded[] = {bits, bits, bits + bits % 2, bits + 1};
            for (int i = 0; i < 4; i++) {
                in.host[count] = sign ? -values[i] : values[i];
                expected[count++] = (uint16_t)(rounded[i] | sign);
            }
        }
    const float extremes[] = {FLT_MAX, -FLT_MAX, INFINITY, -INFINITY};
    for (int i = 0; i < 4; i++) {
        in.host[count] = extremes[i];
        expected[count++] = (uint16_t)(infinity_of(f) | (i % 2 ? 0x8000 : 0));
    }
    in.host[count] = NAN;
    upload(in);
    LAUNCH(round_kernel<T>, blocks_for(count + 1), NUMBER_THREADS, 0, 0, (T *)out.device, in.device,
           count + 1);
    finish();
    download(out);
    for (size_t i = 0; i < count; i++) CHECK(out.host[i] == expected[i]);
    CHECK((out.host[count] & 0x7fff) > infinity_of(f));
    free(expected);
    drop(in), drop(out);
}

template <class T> static void test_widening(format f) {
    buffer<float> out = make_buffer<float>(PATTERNS);
    LAUNCH(widen_kernel<T>, PATTERNS / NUMBER_THREADS, NUMBER_THREADS, 0, 0, out.device);
    finish();
    download(out);
    for (unsigned bits = 0; bits < PATTERNS; bits++) {
        float value = out.host[bits];
        unsigned magnitude = bits & 0x7fff;
        bool negative = bits >> 15 & 1;
        if (magnitude > infinity_of(f)) CHECK(isnan(value));
        else if (magnitude == infinity_of(f)) CHECK(value == (negative ? -INFINITY : INFINITY));
        else CHECK(value == value_of(f, bits) && (signbit(value) != 0) == negative);
    }
    drop(out);
}

/* ---- conversion to 8 bits: the bits of kernels/float8.h, with the instruction and without */

static __device__ uint32_t code_of(enum dtype dtype, float x, float scale) {
    return dtype == DTYPE_E4M3 ? float8_code<DTYPE_E4M3>(x, scale)
                               : float8_code<DTYPE_E5M2>(x, scale);
}

/* Every sign, exponent and upper fraction, and below them nothing, the least, one less than half,
 * half, and all ones: 16 bits decide a code but for ties, and those need the lower 16 to be 0. */
static __global__ void float8_kernel(int *wrong, enum dtype dtype, float scale) {
    static const uint32_t below[] = {0, 1, 0x7fff, 0x8000, 0xffff};
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < 5; j++) {
        float x = __uint_as_float(i << 16 | below[j]);
        if (code_of(dtype, x, scale) != f8_round(x, scale, dtype)) atomicAdd(wrong, 1);
    }
}

/* The instruction alone. */
static __global__ void float8_special_kernel(uint32_t *out, float one) {
    const float infinity = one * INFINITY;
    if (!FLOAT8_INSTRUCTIONS) return;
    int i = 0;
    out[i++] = e4m3_pair(infinity, 0); /* 448, not a NaN */
    out[i++] = e4m3_pair(-1e30f * one, 0);
    out[i++] = e4m3_pair(infinity - infinity, 0) & 0x7f;
    out[i++] = e5m2_pair(-infinity, 0);
    out[i++] = e5m2_pair(infinity - infinity, 0) & 0x7f;
    out[i++] = e4m3_pair(1.0625f * one, 0); /* a tie goes to the even code */
    out[i++] = e4m3_pair(1.1875f * one, -one);
    out[i++] = e5m2_pair(-0.0f * one, 0);
}

static void test_float8() {
    static const uint32_t expected[] = {0x7e, 0xfe, 0x7f, 0xfb, 0x7f, 0x38, 0xb83a, 0x80};
    buffer<int> wrong = make_buffer<int>(1);
    buffer<uint32_t> out = make_buffer<uint32_t>(8);
    for (int run = 0; run < 6; run++) {
        const float scales[] = {1, 0.37f, 0x1p126f};
        upload(wrong);
        LAUNCH(float8_kernel, PATTERNS / NUMBER_THREADS / STEP, NUMBER_THREADS, 0, 0, wrong.device,
               run % 2 ? DTYPE_E5M2 : DTYPE_E4M3, scales[run / 2]);
        finish();
        download(wrong);
        CHECK(wrong.host[0] == 0);
        wrong.host[0] = 0;
    }
    for (int i = 0; i < 8; i++) out.host[i] = expected[i]; /* for GPUs without the instruction */
    upload(out);
    LAUNCH(float8_special_kernel, 1, 1, 0, 0, out.device, 1.0f);
    finish();
    download(out);
    for (int i = 0; i < 8; i++) CHECK(out.host[i] == expected[i]);
    drop(wrong), drop(out);
}

/* ---- functions: within the errors that the CUDA programming guide promises */

enum function { EXP, EXP2, RSQRT, DIVIDE, LOG, RECIPROCAL, EXPF, TANH, SQRT, FUNCTIONS };

static __global__ void function_kernel(float *out, const float *in, size_t count) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= count) return;
    float x = in[i], *o = out + i * FUNCTIONS;
    o[EXP] = __expf(x);
    o[EXP2] = exp2_approx(x);
    o[RSQRT] = rsqrtf(fabsf(x));
    o[DIVIDE] = __fdividef(3.0f, x);
    o[LOG] = __logf(fabsf(x));
    o[RECIPROCAL] = reciprocal_approx(x);
    o[EXPF] = expf(x);
    o[TANH] = tanhf(x);
    o[SQRT] = sqrtf(fabsf(x));
}

static void close_to(float got, double expected, double ulps) {
    CHECK(fabs(got - expected) <= ulps * ldexp(fabs(expected), -23));
}

static void test_functions() {
    buffer<float> in = make_buffer<float>(4000);
    buffer<float> out = make_buffer<float>(in.count * FUNCTIONS);
    for (size_t i = 0; i < in.count; i++)
        in.host[i] = i < 2000 ? 80 * ((float)i + 0.37f) / 1000 - 80 : ((float)i - 3000.5f) / 300;
    upload(in);
    LAUNCH(function_kernel, blocks_for(in.count), NUMBER_THREADS, 0, 0, out.device, in.device,
           in.count);
    finish();
    download(out);
    for (size_t i = 0; i < in.count; i++) {
        double x = in.host[i];
        const float *o = out.host + i * FUNCTIONS;
        close_to(o[EXP], exp(x), 3 + fabs(1.173 * x));
        close_to(o[EXP2], exp2(x), 2);
        close_to(o[RSQRT], 1 / sqrt(fabs(x)), 2);
        close_to(o[DIVIDE], 3 / x, 2);
        CHECK(fabs(o[LOG] - log(fabs(x))) <=
              fmax(ldexp(1, -21), 3 * ldexp(fabs(log(fabs(x))), -23)));
        close_to(o[RECIPROCAL], 1 / x, 1);
        close_to(o[EXPF], exp(x), 2);
        close_to(o[TANH], tanh(x), 3);
        CHECK(o[SQRT] == sqrtf(fabsf(in.host[i])));
    }
    drop(in), drop(out);
}

static __global__ void tf32_kernel(uint32_t *out, const float *in) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    out[i] = tf32_bits(in[i]);
}

/* Ties away from zero; beyond the largest value, infinity; a NaN stays one. Half of the values are
 * close to a tie, or are one. */
static void test_tf32() {
    buffer<float> in = make_buffer<float>(64 * NUMBER_THREADS);
    buffer<uint32_t> out = make_buffer<uint32_t>(in.count);
    static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff,
                                       0x7fffffff, 0xffffffff, 0x00000fff, 0x00001000, 0x7f7fefff};
    for (size_t i = 0; i < in.count; i++) {
        uint32_t bits = (uint32_t)rand() << 16 ^ (uint32_t)rand();
        if (i % 2) bits = (bits & ~0x1fffu) + 0xfff + bits % 3;
        if (i < sizeof special / sizeof *special) bits = special[i];
        memcpy(&in.host[i], &bits, sizeof bits);
    }
    upload(in);
    LAUNCH(tf32_kernel, blocks_for(in.count), NUMBER_THREADS, 0, 0, out.device, in.device);
    finish();
    download(out);
    for (size_t i = 0; i < in.count; i++) {
        float got;
        double x = in.host[i];
        memcpy(&got, &out.host[i], sizeof got);
        CHECK((out.host[i] & 0x1fff) == 0);
        CHECK(isnan(got) == isnan(x));
        if (isnan(x)) continue;
        int exponent = x == 0 || isinf(x) ? 0 : ilogb(x) < -126 ? -126 : ilogb(x);
        double expected = isinf(x) ? x : ldexp(round(ldexp(x, 10 - exponent)), exponent - 10);
        CHECK(got == (float)expected); /* 2^128 is infinity */
    }
    drop(in), drop(out);
}

static __global__ void special_kernel(float *out, float one) {
    const float infinity = one * INFINITY, nan = infinity - infinity;
    int i = 0;
    out[i++] = exp2_approx(-127 * one); /* 0 to 4 are 0 */
    out[i++] = exp2_approx(-1000 * one) + reciprocal_approx(-0x1.8p126f * one);
    out[i++] = exp2_approx(-infinity);
    out[i++] = __expf(-infinity);
    out[i++] = 1 / infinity;
    out[i++] = exp2_approx(one * 0); /* 5 to 9 are 1 */
    out[i++] = fmaxf(nan, one);      /* the other one, if one is NaN */
    out[i++] = fminf(one, nan);
    out[i++] = fmaf(one, -one, 2 * one);
    out[i++] = __uint_as_float(__float_as_uint(one));
    out[i++] = exp2_approx(1000 * one); /* 10 and 11 are infinite */
    out[i++] = expf(89 * one) + reciprocal_approx(0 * one);
    out[i++] = __expf(nan); /* 12 to 14 are NaN */
    out[i++] = exp2_approx(nan);
    out[i++] = infinity * 0;
    out[i++] = rounded<__half>(1 + one / 4096); /* 1, then infinite */
    out[i++] = rounded<__half>(65520 * one);
}

static void test_specials() {
    buffer<float> out = make_buffer<float>(17);
    LAUNCH(special_kernel, 1, 1, 0, 0, out.device, 1.0f);
    finish();
    download(out);
    for (int i = 0; i < 15; i++) {
        float x = out.host[i];
        CHECK(i < 5 ? x == 0 : i < 10 ? x == 1 : i < 12 ? x == INFINITY : isnan(x));
    }
    CHECK(out.host[15] == 1 && out.host[16] == INFINITY);
    drop(out);
}

/* ---- packs */

template <class T> static __global__ void pack_kernel(T *out, const T *in, int count) {
    int at = (int)threadIdx.x * PACK;
    float values[PACK];
    if (at + PACK <= count) {
        load_pack(values, in + at);
        for (int i = 0; i < PACK; i++) values[i] += (float)i;
        store_pack(out + at, values);
    } else if (at < count) {
        load_some(values, in + at, count - at);
        for (int i = 0; i < PACK; i++) values[i] += (float)i;
        store_some(out + at, values, count - at);
    }
}

template <class T> static void test_packs() {
    enum { COUNT = 43 };
    buffer<T> in = make_buffer<T>(COUNT), out = make_buffer<T>(COUNT + 5);
    for (int i = 0; i < COUNT; i++) in.host[i] = T((float)(3 * i - 40));
    memset((void *)out.host, 0x11, out.count * sizeof(T));
    T untouched = out.host[0];
    upload(in);
    upload(out);
    LAUNCH(pack_kernel<T>, 1, 8, 0, 0, out.device, in.device, (int)COUNT);
    finish();
    download(out);
    for (int i = 0; i < COUNT; i++) CHECK((float)out.host[i] == (float)(3 * i - 40 + i % PACK));
    for (int i = COUNT; i < COUNT + 5; i++)
        CHECK(memcmp(&out.host[i], &untouched, sizeof untouched) == 0);
    drop(in), drop(out);
}

/* ---- sums of tensor cores */

static void fill(float *values, int count, int step, emu::tensor_core_format format) {
    static const struct {
        int fraction_bits, exponents;
    } ranges[] = {{3, 13}, {2, 23}, {10, 19}, {7, 23}, {10, 23}};
    int bits = ranges[format].fraction_bits, exponents = ranges[format].exponents;
    for (int k = 0; k < count; k++) {
        int n = k * step + step;
        float size = ldexpf((float)((1 << bits) + n * 29 % (1 << bits)),
                            n % exponents - exponents / 2 - bits);
        values[k] = n / 3 % 2 ? -size : size;
    }
}

/* Expected sums are those of mmaemu 0.1.0 with the forms of tensor_core.h. */
static void test_tensor_core() {
    using namespace emu;
    enum { TERMS = 72, SUMS = 3 };
    static const float before[SUMS] = {0, -1000.125f, 3e5f};
    static const struct {
        tensor_core_format a, b;
        float sums[SUMS];
    } cases[] = {
        {E4M3, E4M3, {-0x1.1e18p+12f, -0x1.5c98p+12f, 0x1.209p+18f}},
        {E4M3, E5M2, {-0x1.e8a8p+16f, -0x1.ec9p+16f, 0x1.55c8p+17f}},
        {E5M2, E4M3, {-0x1.859p+17f, -0x1.878p+17f, 0x1.892p+16f}},
        {E5M2, E5M2, {-0x1.57ep+18f, -0x1.58d8p+18f, -0x1.974p+15f}},
        {F16, F16, {-0x1.400654p+17f, -0x1.41fa64p+17f, 0x1.09e9a8p+17f}},
        {emu::BF16, emu::BF16, {-0x1.683a0ep+18f, -0x1.693416p+18f, -0x1.0d0852p+16f}},
        {TF32, TF32, {-0x1.cd9508p+17f, -0x1.cf8918p+17f, 0x1.f16bb6p+15f}},
    };
    for (const auto &given : cases) {
        float one[TERMS], a[TERMS * SUMS], b[TERMS], sums[SUMS];
        fill(one, TERMS, 7, given.a), fill(b, TERMS, 11, given.b);
        for (int i = 0; i < TERMS * SUMS; i++) a[i] = one[i / SUMS];
        memcpy(sums, before, sizeof sums);
        tensor_core_add(sums, SUMS, a, SUMS, given.a, b, given.b, TERMS);
        for (int i = 0; i < SUMS; i++) CHECK(sums[i] == given.sums[i]);
    }
    /* A subnormal E5M2 counts with exponent -14: the second product is below the last bit. */
    const float a[] = {0x1p-16f, 0x1p-16f}, b[] = {1, 0x1.cp-12f};
    float sum = 0, bad = INFINITY;
    tensor_core_add(&sum, 1, a, 1, E5M2, b, E5M2, 2);
    tensor_core_add(&bad, 1, a, 1, E5M2, b, E5M2, 2);
    CHECK(sum == 0x1p-16f && bad == INFINITY);
    double worst = 0;
    for (float x = -9; x <= 9; x += 0x1p-8f) {
        double exact = tanh((double)x), error = fabs(tanh_approx(x) - exact);
        worst = fmax(worst, error / fmax(fabs(exact), 0x1p-20));
    }
    CHECK(worst < 0x1p-11 && worst > 0.9 * 0x1p-11);
}

void test_numbers() {
    test_tensor_core();
    test_rounding<__half>(FP16);
    test_rounding<__nv_bfloat16>(BF16);
    test_widening<__half>(FP16);
    test_widening<__nv_bfloat16>(BF16);
    test_float8();
    test_functions();
    test_tf32();
    test_specials();
    test_packs<float>();
    test_packs<__half>();
    test_packs<__nv_bfloat16>();
}
