#include "kernels/cuda/matmul/products.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/cuda/plain_c.h"
extern "C" {
#include "kernels/collectives.h"
}

/* Splits of k may be added up in fp32, in a pass of their own: the order is fixed, and nothing is
 * rounded to 16 bits in between, as the two other schemes may do. With an epilogue k is not split:
 * that pass is documented to round the sum to out before the bias is added, and the order of column
 * sums is undocumented. */
static uint32_t reductions_of(const struct product_key *key) {
    return key->epilogue == EPILOGUE_NONE ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                          : CUBLASLT_REDUCTION_SCHEME_NONE;
}

size_t product_alignment(enum dtype dtype, int64_t columns) {
    size_t bytes = dtype_size(dtype, columns), alignment = ARENA_ALIGNMENT;
    while (bytes % alignment) alignment /= 2;
    return alignment;
}

const char *const product_scale_names[PRODUCT_SCALES] = {"none",  "tensor", "vec16",
                                                         "vec32", "vec128", "blk128"};
const char *const epilogue_names[EPILOGUES] = {"none", "bias", "gelu", "gelu_bias", "dgelu"};

static cudaDataType_t type_of(int dtype) {
#if CUBLAS_VERSION >= 120900
    if (dtype == DTYPE_E2M1) return CUDA_R_4F_E2M1;
#endif
    static const cudaDataType_t types[DTYPE_ALL_COUNT] = {
#define X(NAME, name, bits, huggingface, type) type,
        DTYPES(X)
#undef X
#define X(NAME, name, bits, type, ...) type,
            DTYPES_QUANTIZED(X)
#undef X
    };
    return types[dtype];
}

static uint32_t epilogue_of(const struct product_key *key) {
    switch (key->epilogue) {
    case EPILOGUE_BIAS: return CUBLASLT_EPILOGUE_BIAS;
    case EPILOGUE_GELU: return CUBLASLT_EPILOGUE_GELU_AUX;
    case EPILOGUE_GELU_BIAS: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case EPILOGUE_DGELU: return CUBLASLT_EPILOGUE_DGELU;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

static bool has_vector(const struct product_key *key) {
    return key->epilogue == EPILOGUE_BIAS || key->epilogue == EPILOGUE_GELU_BIAS;
}

static bool has_aux(const struct product_key *key) {
    return key->epilogue == EPILOGUE_GELU || key->epilogue == EPILOGUE_GELU_BIAS ||
           key->epilogue == EPILOGUE_DGELU;
}

/* ---- descriptors */

/* INVALID_VALUE means that the library was called wrongly: it checks descriptors only when
 * algorithms are requested. A stored algorithm is checked with it too, and may be of another
 * version.
 */
static void refuse(struct cuda_products *products, cublasStatus_t status, const char *call) {
    bool ours = status == CUBLAS_STATUS_INVALID_VALUE && strcmp(call, "MatmulAlgoCheck") != 0;
    const char *bug = "; this is a bug of mantissa, not of the GPU: please report it";
    snprintf(products->refusal, sizeof products->refusal, "cublasLt%s: %.60s (status %d)%s", call,
             products->lt.GetStatusString(status), (int)status, ours ? bug : "");
}

static bool succeeds(struct cuda_products *products, cublasStatus_t status, const char *call) {
    if (status != CUBLAS_STATUS_SUCCESS) refuse(products, status, call);
    return status == CUBLAS_STATUS_SUCCESS;
}

#define SET(function, object, attribute, value)                                           \
    succeeds(products, products->lt.function(object, attribute, &(value), sizeof(value)), \
             #function " of " #attribute)

/* The heuristics read alignments from the pointers in the operation: these numbers promise the
 * alignments that product_run checks. */
static bool describe_epilogue(struct cuda_products *products, const struct cuda_product *product) {
    const struct product_key *key = &product->key;
    cublasLtMatmulDesc_t operation = product->operation;
    uint32_t epilogue = epilogue_of(key);
    int64_t stride = key->n;
    const void *vector = (const void *)(uintptr_t)VECTOR_ALIGNMENT;
    const void *aux = (const void *)product_alignment((enum dtype)key->out, key->n);
    bool ok = SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (has_vector(key))
        ok &= SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    if (!has_aux(key)) return ok;
    ok &= SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride);
    return ok &
           SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
}

static bool alpha_on_device(const struct product_key *key) {
    return key->a_scale == PRODUCT_VEC16;
}

/* Our b is the library's A. */
static bool describe_blocks(struct cuda_products *products, const struct cuda_product *product) {
#if CUBLAS_VERSION >= 120900
    static const int32_t modes[PRODUCT_SCALES] = {
        [PRODUCT_UNSCALED] = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        [PRODUCT_TENSOR] = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F,
        [PRODUCT_VEC16] = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3,
        [PRODUCT_VEC32] = CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
        [PRODUCT_VEC128] = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
        [PRODUCT_BLK128] = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
    };
    const struct product_key *key = &product->key;
    cublasLtMatmulDesc_t operation = product->operation;
    int32_t pointers = CUBLASLT_POINTER_MODE_DEVICE;
    return SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
               modes[key->b_scale]) &&
           SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
               modes[key->a_scale]) &&
           (!alpha_on_device(key) ||
            SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_POINTER_MODE, pointers));
#else
    (void)products, (void)product;
    return false;
#endif
}

/* For operands of 8 or 4 bits only. */
static bool describe_scales(struct cuda_products *products, const struct cuda_product *product) {
    const struct product_key *key = &product->key;
    cublasLtMatmulDesc_t operation = product->operation;
    const void *scale = (const void *)(uintptr_t)MATMUL_SCALE_ALIGNMENT;
    int8_t fast = (int8_t)key->fast;
    if (!dtype_is_quantized((enum dtype)key->a_in)) return true;
    bool ok = product_in_blocks(key)
                  ? describe_blocks(products, product)
                  : SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
    if (key->a_scale == PRODUCT_UNSCALED) return ok;
    ok &= SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale);
    return ok & SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale);
}

/* Our [rows, columns] are the library's [columns, rows]. */
static bool lay_out(struct cuda_products *products, cublasLtMatrixLayout_t *layout, int dtype,
                    int64_t rows, int64_t columns) {
    cublasStatus_t status = products->lt.MatrixLayoutCreate(
        layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, columns);
    return succeeds(products, status, "MatrixLayoutCreate");
}

bool product_describe(struct cuda_products *products, struct cuda_product *product) {
    const struct product_key *key = &product->key;
    cublasComputeType_t compute = key->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int32_t first = key->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int32_t second = key->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    bool ta = key->transpose_a, tb = key->transpose_b;
    if (!succeeds(products, products->lt.MatmulDescCreate(&product->operation, compute, CUDA_R_32F),
                  "MatmulDescCreate"))
        return false;
    cublasLtMatmulDesc_t operation = product->operation;
    return SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_TRANSA, first) &&
           SET(MatmulDescSetAttribute, operation, CUBLASLT_MATMUL_DESC_TRANSB, second) &&
           (!products->target || SET(MatmulDescSetAttribute, operation,
                                     CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, products->target)) &&
           describe_epilogue(products, product) && describe_scales(products, product) &&
           lay_out(products, &product->a, key->a_in, ta ? key->k : key->m, ta ? key->m : key->k) &&
           lay_out(products, &product->b, key->b_in, tb ? key->n : key->k, tb ? key->k : key->n) &&
           lay_out(products, &product->out, key->out, key->m, key->n);
}

void product_discard(const struct cuda_products *products, struct cuda_product *product) {
    cublasLtMatrixLayout_t layouts[] = {product->a, product->b, product->out};
    for (int i = 0; i < 3; i++)
        if (layouts[i]) products->lt.MatrixLayoutDestroy(layouts[i]);
    if (product->operation) products->lt.MatmulDescDestroy(product->operation);
    product->operation = NULL;
    product->a = product->b = product->out = NULL;
}

/* ---- algorithms */

static bool prefer_number(struct cuda_products *products, cublasLtMatmulPreference_t preference,
                          cublasLtMatmulPreferenceAttributes_t attribute, size_t number) {
    uint32_t value = (uint32_t)number;
    return SET(MatmulPreferenceSetAttribute, preference, attribute, value);
}

/* Limits of the algorithms: workspace, reduction schemes, alignments. */
static bool prefer(struct cuda_products *products, cublasLtMatmulPreference_t preference,
                   const struct product_key *key, uint64_t workspace_bytes) {
    size_t a = product_alignment((enum dtype)key->a_in, key->transpose_a ? key->m : key->k);
    size_t b = product_alignment((enum dtype)key->b_in, key->transpose_b ? key->k : key->n);
    size_t out = product_alignment((enum dtype)key->out, key->n);
    return SET(MatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
               workspace_bytes) &&
           prefer_number(products, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                         reductions_of(key)) &&
           prefer_number(products, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b) &&
           prefer_number(products, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a) &&
           prefer_number(products, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out) &&
           prefer_number(products, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out);
}

int product_request(struct cuda_products *products, const struct cuda_product *product,
                    size_t workspace_bytes, cublasLtMatmulHeuristicResult_t *algorithms,
                    int wanted) {
    const struct cublaslt *lt = &products->lt;
    cublasLtMatmulPreference_t preference;
    int got = 0, kept = 0;
    snprintf(products->refusal, sizeof products->refusal, "cuBLASLt has no algorithm for it");
    if (!succeeds(products, lt->MatmulPreferenceCreate(&preference), "MatmulPreferenceCreate"))
        return 0;
    if (!prefer(products, preference, &product->key, workspace_bytes) ||
        !succeeds(products,
                  lt->MatmulAlgoGetHeuristic(products->handle, product->operation, product->b,
                                             product->a, product->out, product->out, preference,
                                             wanted, algorithms, &got),
                  "MatmulAlgoGetHeuristic"))
        got = 0;
    lt->MatmulPreferenceDestroy(preference);
    for (int i = 0; i < got; i++) {
        if (!succeeds(products, algorithms[i].state, "MatmulAlgoGetHeuristic's result")) continue;
        if (algorithms[i].workspaceSize <= workspace_bytes) algorithms[kept++] = algorithms[i];
    }
    return kept;
}

/* ---- recorded algorithms */

enum { ALGORITHM_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t), WORD_DIGITS = 16 };

static void print_key(char text[ALGORITHM_LINE_MAX], const struct product_key *key) {
    snprintf(text, ALGORITHM_LINE_MAX,
             "a=%s b=%s out=%s m=%" PRId64 " n=%" PRId64 " k=%" PRId64
             " transpose=%d%d accumulate=%d tf32=%d fast=%d scales=%s,%s epilogue=%s",
             dtype_name((enum dtype)key->a_in), dtype_name((enum dtype)key->b_in),
             dtype_name((enum dtype)key->out), key->m, key->n, key->k, key->transpose_a,
             key->transpose_b, key->accumulate, key->tf32, key->fast,
             product_scale_names[key->a_scale], product_scale_names[key->b_scale],
             epilogue_names[key->epilogue]);
}

/* All digits are zero if the product is declined. */
static void print_algorithm(char text[ALGORITHM_MAX], const cublasLtMatmulAlgo_t *algorithm) {
    int length = snprintf(text, ALGORITHM_MAX, "algorithm=");
    for (int i = 0; i < ALGORITHM_WORDS; i++)
        length += snprintf(text + length, (size_t)(ALGORITHM_MAX - length), "%016" PRIx64,
                           algorithm->data[i]);
}

static bool scan_algorithm(const char *text, cublasLtMatmulAlgo_t *algorithm) {
    const char *digits = strchr(text, '=') ? strchr(text, '=') + 1 : "";
    if (strlen(digits) != WORD_DIGITS * ALGORITHM_WORDS) return false;
    for (int i = 0; i < ALGORITHM_WORDS; i++) {
        char word[WORD_DIGITS + 1] = {0};
        memcpy(word, digits + WORD_DIGITS * i, WORD_DIGITS);
        algorithm->data[i] = strtoull(word, NULL, 16);
    }
    return strspn(digits, "0123456789abcdef") == WORD_DIGITS * ALGORITHM_WORDS;
}

enum recorded product_take_recorded(struct cuda_products *products, struct cuda_product *product,
                                    size_t workspace_bytes, bool planning) {
    static const cublasLtMatmulAlgo_t none = {};
    cublasLtMatmulHeuristicResult_t result;
    char key[ALGORITHM_LINE_MAX], why[PRODUCT_REFUSAL_MAX + ALGORITHM_MAX];
    print_key(key, &product->key);
    const char *text =
        products->algorithms ? algorithms_find(products->algorithms, key, planning) : NULL;
    if (!text) return RECORDED_NONE;
    bool valid = scan_algorithm(text, &product->algorithm);
    if (valid && memcmp(&product->algorithm, &none, sizeof none) == 0) return RECORDED_DECLINED;
    if (!valid) snprintf(products->refusal, sizeof products->refusal, "its line is damaged");
    else
        valid = succeeds(products,
                         products->lt.MatmulAlgoCheck(products->handle, product->operation,
                                                      product->b, product->a, product->out,
                                                      product->out, &product->algorithm, &result),
                         "MatmulAlgoCheck");
    if (!valid) {
        snprintf(why, sizeof why, "chosen again, the algorithm of an earlier run is refused: %s",
                 products->refusal);
        product_note_fallback(products, &product->key, &product->key, why);
        return RECORDED_NONE;
    }
    product->workspace_bytes = result.workspaceSize;
    return result.workspaceSize > workspace_bytes ? RECORDED_NONE : RECORDED_ALGORITHM;
}

void product_record(struct cuda_products *products, const struct cuda_product *product,
                    bool declined, bool timed) {
    static const cublasLtMatmulAlgo_t none = {};
    char key[ALGORITHM_LINE_MAX], algorithm[ALGORITHM_MAX];
    print_key(key, &product->key);
    print_algorithm(algorithm, declined ? &none : &product->algorithm);
    algorithms_add(products->algorithms, key, algorithm, timed);
}

/* ---- fallbacks */

void product_note_fallback(struct cuda_products *products, const struct product_key *runs,
                           const struct product_key *requested, const char *why) {
    char line[2 * PRODUCT_REFUSAL_MAX + ALGORITHM_MAX];
    snprintf(line, sizeof line,
             "matmul %lld x %lld x %lld: %s x %s, epilogue %s, instead of %s x %s, %s: %s",
             (long long)runs->m, (long long)runs->n, (long long)runs->k,
             dtype_name((enum dtype)runs->a_in), dtype_name((enum dtype)runs->b_in),
             epilogue_names[runs->epilogue], dtype_name((enum dtype)requested->a_in),
             dtype_name((enum dtype)requested->b_in), epilogue_names[requested->epilogue], why);
    for (ptrdiff_t i = 0; i < arrlen(products->fallbacks); i++)
        if (strcmp(products->fallbacks[i], line) == 0) return;
    char *copy = strdup(line);
    if (copy) arrput(products->fallbacks, copy); /* else only the report misses it */
}

const char *cuda_products_fallback(const struct cuda_products *products, int index) {
    return index < arrlen(products->fallbacks) ? products->fallbacks[index] : NULL;
}

/* ---- running */

static bool is_aligned(const void *data, int dtype, int64_t columns) {
    return (uintptr_t)data % product_alignment((enum dtype)dtype, columns) == 0;
}

/* The pointers of scales and of an epilogue are attributes of the operation. Setting them is a
 * store into host memory: the library copies them when the product is queued. */
static cublasStatus_t set_pointers(const struct cublaslt *lt, const struct cuda_product *product,
                                   const struct product_memory *memory) {
    const struct product_key *key = &product->key;
    const struct {
        bool used;
        cublasLtMatmulDescAttributes_t attribute;
        const void *pointer;
    } pointers[] = {
        {has_vector(key), CUBLASLT_MATMUL_DESC_BIAS_POINTER, memory->vector},
        {has_aux(key), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, memory->aux},
        {key->b_scale != 0, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, memory->b_scale},
        {key->a_scale != 0, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, memory->a_scale},
    };
    assert(!has_vector(key) || (uintptr_t)memory->vector % VECTOR_ALIGNMENT == 0);
    assert((uintptr_t)memory->a_scale % MATMUL_SCALE_ALIGNMENT == 0);
    assert((uintptr_t)memory->b_scale % MATMUL_SCALE_ALIGNMENT == 0);
    assert(!has_aux(key) || is_aligned(memory->aux, key->out, key->n));
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++) {
        if (!pointers[i].used) continue;
        assert(pointers[i].pointer);
        cublasStatus_t status =
            lt->MatmulDescSetAttribute(product->operation, pointers[i].attribute,
                                       &pointers[i].pointer, sizeof pointers[i].pointer);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t product_run(const struct cuda_products *products, const struct cuda_product *product,
                           const struct product_memory *memory) {
    const struct cublaslt *lt = &products->lt;
    const struct product_key *key = &product->key;
    const float on_host[] = {1, key->accumulate ? 1.0f : 0.0f};
    const float *alpha = alpha_on_device(key) ? memory->alpha : on_host;
    assert(is_aligned(memory->a, key->a_in, key->transpose_a ? key->m : key->k));
    assert(is_aligned(memory->b, key->b_in, key->transpose_b ? key->k : key->n));
    assert(is_aligned(memory->out, key->out, key->n));
    cublasStatus_t status = set_pointers(lt, product, memory);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return lt->Matmul(products->handle, product->operation, alpha, memory->b, product->b, memory->a,
                      product->a, alpha + 1, memory->out, product->out, memory->out, product->out,
                      &product->algorithm, memory->workspace, product->workspace_bytes,
                      products->stream);
}

/* ---- opening and closing */

static int open_library(struct cuda_products *products, struct error *error) {
    cudaDeviceProp properties;
    int device;
    if (cublaslt_load(&products->lt, error)) return -1;
    cublasStatus_t status = products->lt.Create(&products->handle);
    if (status) {
        products->handle = NULL;
        refuse(products, status, "Create");
        return fail(error, "device \"cuda\": cuBLASLt cannot be started: %s", products->refusal);
    }
    if (cudaGetDevice(&device) == cudaSuccess &&
        cudaGetDeviceProperties(&properties, device) == cudaSuccess)
        snprintf(products->name, sizeof products->name, "%s", properties.name);
    return 0;
}

/* Workspace is for algorithms that split k: each part has an output in fp32 there. NVIDIA advises
 * 32 MiB for Hopper, which 4 parts of a 1600 x 6400 gradient exceed. A 512th of the memory costs
 * little on large GPUs. */
static size_t workspace_for(size_t memory) {
    size_t least = (size_t)32 << 20, most = (size_t)128 << 20, share = memory / 512;
    return share < least ? least : share > most ? most : share;
}

/* Other GPUs than this, or other versions of the library, have stores of their own. */
static int open_algorithms(struct backend *be, const struct backend_options *options,
                           struct error *error) {
    struct cuda_state *cuda = cuda_state(be);
    struct cuda_products *products = cuda->products;
    size_t version = products->lt.GetVersion();
    char title[ALGORITHM_LINE_MAX], store[ALGORITHM_LINE_MAX];
    snprintf(title, sizeof title, "mantissa algorithms, format 3, cublasLt %zu, %s", version,
             products->name);
    snprintf(
        store, sizeof store, "products cublasLt %zu %.64s sm %d %d, %d multiprocessors, %zu MiB",
        version, products->name, cuda->major, cuda->minor,
        products->target ? products->target : cuda->multiprocessors, products->workspace_max >> 20);
    be->algorithms = products->algorithms = algorithms_open(title, store, options, error);
    return be->algorithms ? 0 : -1;
}

/* Returns the number of multiprocessors that matmuls are chosen for beside transfers; 0: all. */
static int32_t target_for(int multiprocessors, const struct ranks *ranks) {
    int taken = ranks ? collectives_multiprocessors(ranks) : 0, half = multiprocessors / 2;
    return taken == 0 ? 0 : taken < half ? multiprocessors - taken : half;
}

/* Epilogues beyond a bias pay on Hopper (9.0) and on Blackwell in data centers (10.x). Elsewhere
 * they are slower than a product and a separate pass: on a GeForce RTX 5090 (12.0) 296 instead of
 * 236 us (sglang issue 34350). */
int cuda_products_open(struct backend *be, const struct backend_options *options,
                       struct error *error) {
    struct cuda_state *cuda = cuda_state(be);
    struct cuda_products *products = (struct cuda_products *)calloc(1, sizeof *products);
    if (!products) return fail_memory(error, "the plans of matmuls");
    cuda->products = products;
    products->stream = cuda->compute;
    products->tf32 = cuda->tf32;
    products->workspace_max = workspace_for(cuda->memory_bytes);
    products->fuses = cuda->major == 9 || cuda->major == 10;
    products->eight_bit = cuda_has_8_bit(cuda);
    products->major = cuda->major;
    products->target = target_for(cuda->multiprocessors, options->ranks);
    if (open_library(products, error)) return -1;
    be->device.gelu_of_stored = !products->fuses;
    snprintf(be->device.library, sizeof be->device.library, "cublasLt %zu",
             products->lt.GetVersion());
    return options->autotune == AUTOTUNE_OFF ? 0 : open_algorithms(be, options, error);
}

void cuda_products_close(struct cuda_products *products) {
    if (products->handle) products->lt.Destroy(products->handle);
    for (ptrdiff_t i = 0; i < arrlen(products->fallbacks); i++) free(products->fallbacks[i]);
    arrfree(products->fallbacks);
    algorithms_close(products->algorithms);
    free(products);
}
