/* Matrix products as cuBLASLt runs them: descriptors, layouts, algorithm.
 *
 * Our matrices are row-major, the library's column-major. A row-major [rows, columns] matrix is,
 * untouched in memory, a column-major [columns, rows] one: its transpose. So out = A B is computed
 * as out^T = B^T A^T: the library's first operand is our b, its second our a, and the vector that
 * it adds to each column of out^T is our bias, which is added to each row of out. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matmul/cublaslt.h"

/* Operation that the library applies to the sums before it stores them. */
enum product_epilogue {
    EPILOGUE_NONE,
    EPILOGUE_BIAS,      /* + vector, a bias [n] */
    EPILOGUE_GELU,      /* the sum is stored in aux [m, n], gelu of it in out */
    EPILOGUE_GELU_BIAS, /* the same for sum + bias */
    EPILOGUE_DGELU      /* sum * gelu'(aux) */
};
enum { EPILOGUES = EPILOGUE_DGELU + 1 };
extern const char *const epilogue_names[EPILOGUES];

/* Scales of an operand's codes, which the library applies. The operand is [outer, k]. */
enum product_scale {
    PRODUCT_UNSCALED,
    PRODUCT_TENSOR, /* one, in fp32 */
    PRODUCT_VEC16,  /* E4M3, for each 16 of k, and one of the product, in fp32 */
    PRODUCT_VEC32,  /* E8M0, for each 32 of k */
    PRODUCT_VEC128, /* fp32, for each 128 of k */
    PRODUCT_BLK128  /* fp32, for each 128 x 128 */
};
enum { PRODUCT_SCALES = PRODUCT_BLK128 + 1 };
extern const char *const product_scale_names[PRODUCT_SCALES];

/* True if the library's headers have scales of blocks: since CUDA 12.9. */
enum { PRODUCTS_KNOW_BLOCKS = CUBLAS_VERSION >= 120900 };

/* Returns the bytes of the scales of an operand [outer, k] in the library's layout
 * (matmul_blocks.cu). */
size_t product_scale_bytes(enum product_scale mode, int64_t outer, int64_t k);

enum { PRODUCT_REFUSAL_MAX = 256 };

/* Identifies a product: shapes, dtypes and the epilogue. There is no padding. */
struct product_key {
    int64_t m, n, k;          /* out [m, n] = op(a) [m, k] op(b) [k, n] */
    int16_t a_in, b_in;       /* enum dtype of the operands: different only if they have 8 bits */
    int16_t a_scale, b_scale; /* enum product_scale */
    int16_t out;              /* enum dtype of out, aux and vector */
    int16_t transpose_a;      /* a is [k, m] */
    int16_t transpose_b;      /* b is [n, k] */
    int16_t accumulate;       /* out += */
    int16_t tf32;             /* fp32 operands may be rounded to 10 bits of fraction */
    int16_t fast;     /* sums of 8-bit operands may stay in the tensor cores' accumulators */
    int32_t epilogue; /* enum product_epilogue */
};

/* True if scales of blocks are part of the operands. */
static inline bool product_in_blocks(const struct product_key *key) {
    return key->a_scale > PRODUCT_TENSOR;
}

struct cuda_product {
    struct product_key key;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, out; /* b is the library's first operand */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes; /* workspace of the algorithm */
};

struct matmul_plan; /* matmul_plan.h */

struct cuda_products {
    struct cublaslt lt;
    cublasLtHandle_t handle;
    cudaStream_t stream;
    size_t workspace_max; /* limit of an algorithm's workspace */
    bool tf32;
    bool fuses;                        /* fusing gelu pays on this GPU */
    bool eight_bit;                    /* this GPU multiplies 8-bit operands */
    int major;                         /* major number of its compute capability */
    int32_t target;                    /* multiprocessors that matmuls are chosen for; 0: all */
    char name[256];                    /* name of the GPU */
    struct algorithms *algorithms;     /* NULL: autotune is off */
    struct matmul_plan *plans;         /* planned matmuls, stb_ds array */
    char **fallbacks;                  /* see backend_fallback, stb_ds array */
    char refusal[PRODUCT_REFUSAL_MAX]; /* reason why the last product is not possible */
};

enum { VECTOR_ALIGNMENT = 16 /* alignment of a bias, in bytes */ };

/* Returns the largest power of two, up to 256, that every row of such a matrix is aligned to.
 * Matrices start at multiples of 256 bytes, or are row slices of such matrices. */
size_t product_alignment(enum dtype dtype, int64_t columns);

/* Creates the descriptors for product->key; products->refusal has the reason if that fails. */
bool product_describe(struct cuda_products *products, struct cuda_product *product);
void product_discard(const struct cuda_products *products, struct cuda_product *product);

/* Requests up to `wanted` algorithms that fit in the workspace; returns their number, or 0 with the
 * reason in products->refusal. */
int product_request(struct cuda_products *products, const struct cuda_product *product,
                    size_t workspace_bytes, cublasLtMatmulHeuristicResult_t *algorithms,
                    int wanted);

/* An algorithm that autotune recorded for a product. A fused product may be recorded as declined,
 * because its unfused form is faster. One that the library no longer accepts is reported as a
 * fallback and counts as none. */
enum recorded { RECORDED_NONE, RECORDED_ALGORITHM, RECORDED_DECLINED };

/* Sets the product's algorithm if one is recorded. planning: see algorithms_find. */
enum recorded product_take_recorded(struct cuda_products *products, struct cuda_product *product,
                                    size_t workspace_bytes, bool planning);

/* Records the product's algorithm, or that it is declined. */
void product_record(struct cuda_products *products, const struct cuda_product *product,
                    bool declined, bool timed);

/* Operands and result of a product, in device memory. */
struct product_memory {
    void *out;
    const void *a, *b;
    const void *a_scale, *b_scale; /* if they are scaled */
    const float *alpha;            /* [2] scale of the product, 1 to accumulate; for VEC16 */
    void *vector, *aux;            /* for epilogues that have them */
    void *workspace;
};

/* Queues the product. */
cublasStatus_t product_run(const struct cuda_products *products, const struct cuda_product *product,
                           const struct product_memory *memory);

/* Adds a line for backend_fallback, once: the product that runs, the requested one, and why. */
void product_note_fallback(struct cuda_products *products, const struct product_key *runs,
                           const struct product_key *requested, const char *why);
