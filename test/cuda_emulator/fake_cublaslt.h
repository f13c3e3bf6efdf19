/* Counters and switches of the fake cuBLASLt, for tests. Counters cover this process since its
 * start. */
#ifndef TEST_CUDA_EMULATOR_FAKE_CUBLASLT_H
#define TEST_CUDA_EMULATOR_FAKE_CUBLASLT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Values of cublasLtEpilogue_t. */
enum fake_epilogue {
    FAKE_DEFAULT = 1,
    FAKE_BIAS = 4,
    FAKE_GELU_AUX = 160,
    FAKE_GELU_AUX_BIAS = 164,
    FAKE_DGELU = 192
};

/* Values of cudaDataType. */
enum fake_type { FAKE_F32 = 0, FAKE_BF16 = 14, FAKE_E4M3 = 28, FAKE_E5M2 = 29, FAKE_E2M1 = 33 };

/* Values of cublasLtMatmulMatrixScale_t. */
enum fake_mode { FAKE_SCALAR, FAKE_VEC16, FAKE_VEC32, FAKE_VEC128 = 4, FAKE_BLK128 };

/* Algorithms, named by the order in which they sum over k: one by one, in blocks, or in three
 * splits. Splits use the reduction scheme by compute type, by output type, or in place. */
enum fake_algorithm {
    FAKE_DIRECT = 1,
    FAKE_BLOCKS,
    FAKE_SPLIT,
    FAKE_SPLIT_OUTPUT,
    FAKE_SPLIT_IN_PLACE
};

struct fake_cublaslt {
    long operations; /* descriptors made */
    long queries;    /* calls of the heuristics */
    long products;   /* matmuls run */
    long in_blocks;  /* matmuls of operands in blocks */
    long alive;      /* objects made and not destroyed */
    /* The last matmul: */
    int epilogue, algorithm;
    int a_type, b_type; /* cudaDataType of the library's operands A and B */
    int a_mode, b_mode; /* modes of their scales */
    int target;         /* multiprocessors that it was chosen for; 0: all */
    int fast, scaled;   /* fast accumulation, both scale pointers */
};

const struct fake_cublaslt *fake_cublaslt_counts(void);

/* Makes matmuls with this epilogue unsupported as well; 0 supports all again. */
void fake_cublaslt_refuse(int epilogue);

/* Makes the heuristics answer as if matmuls with this epilogue were described wrongly; 0: none. */
void fake_cublaslt_misuse(int epilogue);

/* Makes matmuls with this epilogue fail when run, although the heuristics offer algorithms for
 * them. Only `algorithm` fails, or every algorithm if it is 0. Epilogue 0: none. */
void fake_cublaslt_lie(int epilogue, int algorithm);

/* Makes this algorithm a few milliseconds slower; 0: none. */
void fake_cublaslt_slow(int algorithm);

/* Makes all matmuls with this epilogue slower in the same way; 0: none. */
void fake_cublaslt_slow_epilogue(int epilogue);

#ifdef __cplusplus
}
#endif

#endif
