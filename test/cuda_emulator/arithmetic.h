/* Part of cuda_emulator.h: built-ins of a single thread. Functions that are approximate on a GPU
 * are exact to fp32 here; the tests' tolerances cover the device's error. Atomics on floats are
 * left out on purpose. */
#ifndef TEST_CUDA_EMULATOR_ARITHMETIC_H
#define TEST_CUDA_EMULATOR_ARITHMETIC_H

/* ---- memory */

template <class T> static inline T __ldg(const T *p) {
    return *p;
}
template <class T> static inline T __ldcs(const T *p) {
    return *p;
}
template <class T> static inline T __ldcg(const T *p) {
    return *p;
}
template <class T, class U> static inline void __stcs(T *p, const U &value) {
    *p = value;
}
template <class T, class U> static inline void __stcg(T *p, const U &value) {
    *p = value;
}

/* Atomics on int, unsigned and unsigned long long, chosen by the pointer's type. */
template <class T> struct emu_identity { typedef T type; };
template <class T> using emu_exact = typename emu_identity<T>::type;

template <class T> static inline T atomicAdd(T *p, emu_exact<T> value) {
    static_assert((T)0.5 == 0, "atomics on floats make sums depend on the schedule");
    return __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicOr(T *p, emu_exact<T> value) {
    return __atomic_fetch_or(p, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicAnd(T *p, emu_exact<T> value) {
    return __atomic_fetch_and(p, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicExch(T *p, emu_exact<T> value) {
    return __atomic_exchange_n(p, value, __ATOMIC_RELAXED);
}
template <class T> static inline T atomicCAS(T *p, emu_exact<T> expected, emu_exact<T> value) {
    __atomic_compare_exchange_n(p, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}
template <class T> static inline T atomicMax(T *p, emu_exact<T> value) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {}
    return old;
}
template <class T> static inline T atomicMin(T *p, emu_exact<T> value) {
    T old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (value < old && !__atomic_compare_exchange_n(p, &old, value, false, __ATOMIC_RELAXED,
                                                       __ATOMIC_RELAXED)) {}
    return old;
}

/* ---- floats: macros, because glibc declares some of these names */

#define __expf(x)    expf(x)
#define __exp10f(x)  exp10f(x)
#define __logf(x)    logf(x)
#define __log2f(x)   log2f(x)
#define __log10f(x)  log10f(x)
#define __sinf(x)    sinf(x)
#define __cosf(x)    cosf(x)
#define __tanf(x)    tanf(x)
#define __powf(x, y) powf(x, y)

static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
static inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float __frcp_rn(float x) {
    return 1.0f / x;
}
static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fsub_rn(float a, float b) {
    return a - b;
}
static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline double __dmul_rn(double a, double b) {
    return a * b;
}
static inline float __fdiv_rn(float a, float b) {
    return a / b;
}
static inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
static inline float __saturatef(float x) {
    return x > 0 ? x < 1 ? x : 1.0f : 0.0f; /* NaN becomes 0 */
}

/* ---- bits */

template <class To, class From> static inline To emu_bits(From from) {
    static_assert(sizeof(To) == sizeof from, "");
    To to;
    memcpy((void *)&to, &from, sizeof to);
    return to;
}
static inline int __float_as_int(float x) {
    return emu_bits<int>(x);
}
static inline unsigned __float_as_uint(float x) {
    return emu_bits<unsigned>(x);
}
static inline float __int_as_float(int x) {
    return emu_bits<float>(x);
}
static inline float __uint_as_float(unsigned x) {
    return emu_bits<float>(x);
}
static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x) {
    return __builtin_popcountll(x);
}
static inline int __clz(int x) {
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return result;
}

/* ---- min and max of two values of one type */

#define EMU_MIN_MAX(type)                    \
    static inline type min(type a, type b) { \
        return b < a ? b : a;                \
    }                                        \
    static inline type max(type a, type b) { \
        return a < b ? b : a;                \
    }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
static inline float min(float a, float b) {
    return fminf(a, b);
}
static inline float max(float a, float b) {
    return fmaxf(a, b);
}

#endif
