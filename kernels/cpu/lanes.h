/* Vectors of fp32, as wide as the CPU level allows. Internal to kernels/cpu. */
#pragma once

#include <stdint.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#if defined __AVX512F__
#define VECTOR_BYTES 64
#elif defined __AVX__
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

enum { LANES = VECTOR_BYTES / 4 };

typedef float vec __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES), may_alias));

#if VECTOR_BYTES == 64
#define EACH_LANE(f, s)                                                                       \
    f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s), f(8, s), f(9, s), \
        f(10, s), f(11, s), f(12, s), f(13, s), f(14, s), f(15, s)
#elif VECTOR_BYTES == 32
#define EACH_LANE(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#else
#define EACH_LANE(f, s) f(0, s), f(1, s), f(2, s), f(3, s)
#endif

static inline vec vec_load(const float *from) {
    return *(const vec *)from;
}

static inline void vec_store(float *to, vec value) {
    *(vec *)to = value;
}

static inline vec vec_splat(float value) {
#if VECTOR_BYTES == 64
    return _mm512_set1_ps(value);
#elif VECTOR_BYTES == 32
    return _mm256_set1_ps(value);
#else
    return value - (vec){0};
#endif
}

/* Spelled out, since not every compiler contracts a * b + c by itself. */
static inline vec vec_fma(vec a, vec b, vec c) {
#if VECTOR_BYTES == 64
    return _mm512_fmadd_ps(a, b, c);
#elif VECTOR_BYTES == 32 && defined __FMA__
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* Loads from any address; a vec itself is aligned. */
static inline vec vec_load_any(const float *from) {
    vec value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void vec_store_any(float *to, vec value) {
    memcpy(to, &value, sizeof value);
}

/* Returns the sum of all lanes, by halves: compilers' code for a summing loop costs more than the
 * loop. */
static inline float vec_sum(vec value) {
#define ROTATED(j, s) (((j) + (s)) % LANES)
#ifdef __clang__
#define ROTATE(s) __builtin_shufflevector(value, value, EACH_LANE(ROTATED, s))
#else
#define ROTATE(s) __builtin_shuffle(value, (ivec){EACH_LANE(ROTATED, s)})
#endif
#if VECTOR_BYTES == 64
    value += ROTATE(8);
#endif
#if VECTOR_BYTES >= 32
    value += ROTATE(4);
#endif
    value += ROTATE(2);
    value += ROTATE(1);
#undef ROTATED
#undef ROTATE
    return value[0];
}
