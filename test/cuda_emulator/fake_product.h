/* Shared by the two halves of the fake cuBLASLt: descriptors and their checks
 * (fake_cublaslt.cpp), and arithmetic (fake_cublaslt_matmul.cpp). */
#ifndef TEST_CUDA_EMULATOR_FAKE_PRODUCT_H
#define TEST_CUDA_EMULATOR_FAKE_PRODUCT_H

#include "test/cuda_emulator/fake_cublaslt.h"

#include <cublasLt.h>
#include <stdio.h>

namespace fake {

struct layout {
    int32_t type;
    uint64_t rows, columns;
    int64_t stride;
};

struct operation {
    int32_t compute, scale, transpose_a, transpose_b;
    uint32_t epilogue;
    void *vector, *aux;
    int64_t aux_stride;
    int32_t vector_type, aux_type;
    const void *scale_a, *scale_b;
    int32_t mode_a, mode_b, pointers;
    int8_t fast;
    int32_t target; /* multiprocessors */
};

/* Content of our cublasLtMatmulAlgo_t. */
struct algorithm {
    uint64_t magic, problem; /* checksum of the problem that it was made for */
    uint32_t variant, splits;
    uint32_t alignment[6]; /* alignments promised for A, B, C, D, vector, aux */
    uint64_t workspace_bytes, reserved;
};
/* A matmul as its descriptors define it. */
struct problem {
    const operation *op;
    layout a, b, c, d;
    uint64_t m, n, k;
    bool has_vector, has_aux;
    int vector_type, aux_type;
};

enum : unsigned { BLOCK = 32, SPLITS = 3 }; /* splits of k */

static inline bool is_eight_bit(int type) {
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}
static inline bool is_narrow(int type) {
    return is_eight_bit(type) || type == CUDA_R_4F_E2M1;
}
static inline size_t bits_of(int type) {
    return type == CUDA_R_32F ? 32 : is_eight_bit(type) ? 8 : type == CUDA_R_4F_E2M1 ? 4 : 16;
}
static inline size_t size_of(int type) {
    return bits_of(type) / 8;
}

/* Rejections, with the reason on stderr. */
static inline cublasStatus_t reject(cublasStatus_t status, const char *why) {
    fprintf(stderr, "fake cublasLt: %s\n", why);
    return status;
}
#define REQUIRE(condition, why) \
    if (!(condition)) return reject(CUBLAS_STATUS_INVALID_VALUE, why)
#define SUPPORT(condition, why) \
    if (!(condition)) return reject(CUBLAS_STATUS_NOT_SUPPORTED, why)

enum { NARROW_ALIGNMENT = 16 }; /* bytes */

/* Checks what the library requires of operands of 8 or 4 bits, beyond other operands. */
cublasStatus_t examine_narrow(const problem &p);

/* Returns the value of a code of E4M3 or E5M2. */
float from_eight_bits(uint8_t code, bool e4m3);

/* True if the scales of an operand are those of blocks. */
static inline bool is_mode_of_blocks(int32_t mode) {
    return mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

/* Scales of the blocks of an operand with `outer` vectors of k elements: their bytes, the scale of
 * an element, and true if all bytes past the last scale are 0. */
size_t block_scale_bytes(int32_t mode, uint64_t outer, uint64_t k);
float block_scale_of(const void *scales, int32_t mode, uint64_t outers, uint64_t ks, uint64_t outer,
                     uint64_t k);
bool block_scales_are_padded(const void *scales, int32_t mode, uint64_t outers, uint64_t ks);

/* d = epilogue(alpha a b + beta c). The arguments have been checked, and device memory is
 * accessible. */
struct matrices {
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
    const float *device_alpha, *device_beta; /* replace them, if given */
};
void compute(const problem &p, fake_algorithm order, const matrices &with);

} // namespace fake

#endif
