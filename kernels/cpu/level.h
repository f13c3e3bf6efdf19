/* CPU levels: the operations are compiled once for each, and the level is chosen when the program
 * starts, from the processor's features.
 *
 *       x86-64    v2  SSE4.2, POPCNT               Intel since 2008, AMD since 2011
 *                 v3  AVX2, FMA, F16C, BMI         Intel since 2013, AMD since 2015
 *                 v4  AVX-512 F, BW, CD, DQ, VL    Intel servers since 2017, AMD since 2022
 *       others    base, the compiler's default
 *
 * These are the levels of the x86-64 psABI. MANTISSA_CPU in the environment selects a lower one:
 * the program, and its library of matrix products, then use nothing beyond it. Everything else in
 * the program is compiled for any processor of the architecture, so that it can report missing
 * features. kernels/kernels.h says which bits a level fixes. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"

struct product_shape;

/* Exports of a CPU level (operations.c); its other symbols are local. */
struct cpu_operations {
    struct operations run, plan;
    /* out (+)= a b (+ bias) by plain loops; NULL in builds with oneDNN */
    void (*plain_product)(const struct product_shape *shape, float *out, const float *a,
                          const float *b, const float *bias);
    /* dtype_widen and dtype_store, for threads that do not run operations */
    const float *(*widen)(float *buffer, const void *data, enum dtype dtype, size_t offset,
                          size_t count);
    void (*store)(void *data, enum dtype dtype, size_t offset, const float *values, size_t count);
    int64_t square_share; /* gradients that one element of gradient_squares covers */
};

struct cpu_level {
    int number;               /* 3; 0 for base */
    const char *name;         /* "v3", as in MANTISSA_CPU */
    const char *full_name;    /* "x86-64-v3" */
    const char *instructions; /* "AVX2, FMA, ..." */
    const struct cpu_operations *operations;
};

/* Returns the highest level that processor and MANTISSA_CPU allow. *forced (optional) is set to
 * true if MANTISSA_CPU names one. Returns NULL with a message if it names a level that does not
 * exist or that the processor lacks, or if the processor lacks even the lowest one. */
const struct cpu_level *cpu_level_choose(bool *forced, struct error *error);

/* The same for a processor that supports the lowest `supported` levels; requested: value of
 * MANTISSA_CPU, or NULL. */
const struct cpu_level *cpu_level_pick(int supported, const char *requested, struct error *error);

/* Writes the names of all levels of this program, separated by ", ". */
void cpu_level_names(char *text, size_t size);

/* True if the AVX-512 instruction for bf16 products does half the arithmetic per cycle of those for
 * fp32, instead of twice as much: true of Intel's processors with AMX, measured on one whose AMX
 * the hypervisor hides. */
bool cpu_bf16_at_half_rate(void);

/* Writes the processor's name as reported by the kernel. */
void cpu_describe(char *text, size_t size);
