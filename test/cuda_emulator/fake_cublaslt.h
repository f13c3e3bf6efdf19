/* Counters and switches of the fake cuBLASLt, for tests. Counts are of this process, since it
 * started. */
#ifndef TEST_CUDA_EMULATOR_FAKE_CUBLASLT_H
#define TEST_CUDA_EMULATOR_FAKE_CUBLASLT_H

#ifdef __cplusplus
extern "C" {
#endif

/* The values of cublasLtEpilogue_t. */
enum fake_epilogue {
    FAKE_DEFAULT = 1,
    FAKE_BIAS = 4,
    FAKE_GELU_AUX = 160,
    FAKE_GELU_AUX_BIAS = 164,
    FAKE_DGELU = 192
};

/* The values of cudaDataType. */
enum fake_type { FAKE_F32 = 0, FAKE_BF16 = 14, FAKE_E4M3 = 28, FAKE_E5M2 = 29 };

/* Algorithms by the order in which they add over k: one by one, in blocks, in three parts (with
 * the reduction scheme that goes by compute type, output type, or in place). */
enum fake_algorithm {
    FAKE_DIRECT = 1,
    FAKE_BLOCKS,
    FAKE_SPLIT,
    FAKE_SPLIT_OUTPUT,
    FAKE_SPLIT_IN_PLACE
};

struct fake_cublaslt {
    long operations; /* descriptors made */
    long queries;    /* of the heuristics */
    long products;   /* run */
    long alive;      /* objects made and not destroyed */
    /* The last product: */
    int epilogue, algorithm;
    int a_type, b_type; /* cudaDataType of the operands A and B, of the library's */
    int fast, scaled;   /* fast accumulation, both scale pointers */
};

const struct fake_cublaslt *fake_cublaslt_counts(void);

/* From now on products with this epilogue, too, are not supported; 0: all are again. */
void fake_cublaslt_refuse(int epilogue);

/* From now on products with this epilogue fail when they are run, though the heuristics have
 * algorithms for them: those of this algorithm alone, or of all if it is 0. Epilogue 0: none. */
void fake_cublaslt_lie(int epilogue, int algorithm);

/* From now on this algorithm takes a few milliseconds more; 0: none does. */
void fake_cublaslt_slow(int algorithm);

/* So do all products with this epilogue; 0: none. */
void fake_cublaslt_slow_epilogue(int epilogue);

#ifdef __cplusplus
}
#endif

#endif
