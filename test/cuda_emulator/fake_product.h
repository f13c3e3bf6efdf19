/* Shared by the two halves of the fake cuBLASLt: descriptors and their checks
 * (fake_cublaslt.cpp), and arithmetic (fake_cublaslt_matmul.cpp). */
#ifndef TEST_CUDA_EMULATOR_FAKE_PRODUCT_H
#define TEST_CUDA_EMULATOR_FAKE_PRODUCT_H

#include "test/cuda_emulator/fake_cublaslt.h"

#include <cublasLt.h>

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
    const float *scale_a, *scale_b;
    int8_t fast;
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
static inline size_t size_of(int type) {
    return type == CUDA_R_32F ? 4 : is_eight_bit(type) ? 1 : 2;
}

/* d = epilogue(alpha a b + beta c). The arguments have been checked, and device memory is
 * accessible. */
struct matrices {
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
};
void compute(const problem &p, fake_algorithm order, const matrices &with);

} // namespace fake

#endif
