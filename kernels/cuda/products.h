/* Matrix products as cuBLASLt runs them: each is prepared once (descriptors, layouts, algorithm),
 * before step 0 if it was planned, and looked up by its key in every step.
 *
 * Our matrices are row-major, the library's column-major. A row-major [rows, columns] matrix is,
 * untouched in memory, a column-major [columns, rows] one: its transpose. So out = A B is computed
 * as out^T = B^T A^T: the library's first operand is our b, its second our a, and the vector that
 * it adds to each column of out^T is our bias, which is added to each row of out. */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cublaslt.h"

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

enum { PRODUCT_REFUSAL_MAX = 256, PRODUCT_FALLBACK_MAX = 512 };

/* Identifies a product. Compared as bytes: there is no padding. */
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

struct cuda_product {
    struct product_key key;
    bool possible; /* the library has an algorithm */
    bool tried;    /* and it has been run */
    bool compared; /* compared with a form that fuses less, or chosen by an earlier run */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, out; /* b is the library's first operand */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;            /* workspace of the algorithm */
    char refusal[PRODUCT_REFUSAL_MAX]; /* reason why it is not possible */
};

/* Origin of a choice: a file or rank 0; trials of all algorithms; too little time or memory for
 * them. */
enum choice_origin { CHOICE_READ, CHOICE_TIMED, CHOICE_UNTIMED };

struct product_choice {
    struct product_key key;
    cublasLtMatmulAlgo_t algorithm;
    enum choice_origin origin;
};

struct product_choices {
    struct product_choice *items;
    int count, capacity;
};

struct cuda_products {
    struct cublaslt lt;
    cublasLtHandle_t handle;
    cudaStream_t stream;
    size_t workspace_max; /* limit of an algorithm's workspace */
    bool tf32, autotune;
    bool fuses;                    /* fusing gelu pays on this GPU */
    bool eight_bit;                /* this GPU multiplies 8-bit operands */
    int major;                     /* major number of its compute capability */
    char name[256];                /* name of the GPU */
    struct cuda_product *prepared; /* fewer than a hundred, searched linearly */
    int count, capacity;
    struct product_choices choices;    /* choices in use, of this run or the run that it resumes */
    struct product_choices stored;     /* choices of earlier runs, which save trials */
    char *store;                       /* file of the latter, or NULL */
    double trial_limit;                /* limit of all trials together, in seconds */
    double trials_began;               /* progress_clock() before the first; 0: none yet */
    double trials_ended;               /* after the last */
    char refusal[PRODUCT_REFUSAL_MAX]; /* reason why the last product_find returned NULL */
    char (*fallbacks)[PRODUCT_FALLBACK_MAX]; /* see backend_fallback */
    int fallback_count;
};

enum { VECTOR_ALIGNMENT = 16 /* alignment of a bias, in bytes */ };

/* Returns the largest power of two, up to 256, that every row of such a matrix is aligned to.
 * Matrices start at multiples of 256 bytes, or are row slices of such matrices. */
size_t product_alignment(enum dtype dtype, int64_t columns);

/* Returns the product, and prepares it at its first use. Returns NULL if the library has no
 * algorithm for it that needs at most workspace_bytes; products->refusal has the reason. With
 * `try_it` the product is run once, unless it was before, and with autotune its algorithms are
 * timed, which takes device memory for a while; an algorithm that fails then is not taken. The
 * result is valid until the next call. */
const struct cuda_product *product_find(struct cuda_products *products,
                                        const struct product_key *key, size_t workspace_bytes,
                                        bool try_it);

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

/* Writes the refusal: the call of the library that failed, with its status. */
void product_refuse(struct cuda_products *products, cublasStatus_t status, const char *call);

/* Records a line for backend_fallback, once: the product that runs, the requested one, and
 * why. */
void product_note_fallback(struct cuda_products *products, const struct product_key *runs,
                           const struct product_key *requested, const char *why);

/* product_trial.cu. Runs the algorithms on memory of its own and returns the index of the first one
 * that works, or with autotune of the fastest; *timed is false if time or memory did not suffice
 * for all. Returns 0 if there is no memory for the trial, -1 if none works (products->refusal has
 * the library's message). */
enum { TRIED_ALGORITHMS = 8 };
int product_try(struct cuda_products *products, struct cuda_product *product,
                const cublasLtMatmulHeuristicResult_t *algorithms, int count, bool *timed);

/* True while the time for trials is not over, which begins with the first call. */
bool product_has_time(struct cuda_products *products);

/* Returns the median time of some runs on the products' stream, in milliseconds; infinite if one
 * fails. */
float product_time(struct cuda_products *products, bool (*run)(void *argument), void *argument);

/* Fills device memory with random numbers that are finite in every dtype of operands. Returns
 * false if that is not possible. */
bool product_fill(const struct cuda_products *products, void *memory, size_t bytes);

/* Returns true if this product was compared with its unfused form before, and marks it as
 * compared. */
bool product_was_compared(struct cuda_products *products, const struct product_key *key);

/* Declines a product whose unfused form is faster, in this run and in runs that read its choices:
 * product_find returns NULL for it from then on. */
void product_decline(struct cuda_products *products, const struct product_key *key);

/* autotune.cu. Records a choice; an algorithm of zeros declines. Only timed choices are stored for
 * later runs. */
void product_choose(struct cuda_products *products, const struct cuda_product *product, bool timed);

/* Keeps a recorded choice out of the store, because it was not compared with the unfused form. */
void product_mark_untimed(struct cuda_products *products, const struct product_key *key);

/* Returns a recorded choice, or NULL. While planning, a stored one is recorded first. */
const cublasLtMatmulAlgo_t *product_chosen(struct cuda_products *products,
                                           const struct product_key *key, bool planning);

/* Reads the choices of options->choices. Returns -1 with a message; a missing file is no error. */
int product_choices_read(struct cuda_products *products, const char *path, struct error *error);

/* Sets the file of stored choices, in a directory, and reads it. An unreadable one is ignored. */
void product_store_open(struct cuda_products *products, const char *directory,
                        const struct cuda_state *cuda);
