/* Offers the matmuls of GPT-2 and Llama steps, in each precision, to the real cuBLASLt: on the
 * emulated GPU they are planned with the fake library, then products.cu describes each to the real
 * one. Every attribute has to be accepted and read back as it was set. That needs no GPU; but only
 * the heuristics check how attributes fit together.
 *
 * With a driver the heuristics are asked as well: matmuls without an algorithm are listed with the
 * library's status. Only a status that blames the caller is a failure then, because the GPU may
 * lack what the emulated one has. */
#include "kernels/cuda/matmul/matmul_plan.h"
#include "test/cuda_emulator/control.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/cuda/library_paths.h"
#include "kernels/open/backend_open.h"
#include "model/io/config_file.h"
#include "model/plan/memory_plan.h"
}

#define GETTERS(X)              \
    X(MatmulDescGetAttribute)   \
    X(MatrixLayoutGetAttribute) \
    X(MatmulPreferenceGetAttribute)

static struct cublaslt real;
static struct {
#define X(name) decltype(&cublasLt##name) name;
    GETTERS(X)
#undef X
} get;
static long attributes, failures;

enum { OFFERED_MAX = 1024 };
static struct cuda_product offered[OFFERED_MAX];
static int offered_count;

static bool expect(bool ok, const char *what, int number, cublasStatus_t status) {
    if (ok) return true;
    printf("failed: %s %d: %s\n", what, number, real.GetStatusString(status));
    failures++;
    return false;
}

/* ---- setters that read back */

template <class Getter, class Object, class Attribute>
static void read_back(Getter getter, Object object, Attribute attribute, const void *value,
                      size_t bytes, const char *what) {
    unsigned char found[64] = {};
    size_t written = 0;
    cublasStatus_t status = getter(object, attribute, found, bytes, &written);
    bool equal = !status && written == bytes && memcmp(found, value, bytes) == 0;
    expect(equal, what, attribute, status);
    attributes++;
}
#define READ_BACK(getter, ...) read_back(get.getter, __VA_ARGS__, #getter)

static cublasStatus_t set_operation(cublasLtMatmulDesc_t operation,
                                    cublasLtMatmulDescAttributes_t attribute, const void *value,
                                    size_t bytes) {
    cublasStatus_t status = real.MatmulDescSetAttribute(operation, attribute, value, bytes);
    READ_BACK(MatmulDescGetAttribute, operation, attribute, value, bytes);
    return status;
}

static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute,
                                     const void *value, size_t bytes) {
    cublasStatus_t status = real.MatmulPreferenceSetAttribute(preference, attribute, value, bytes);
    READ_BACK(MatmulPreferenceGetAttribute, preference, attribute, value, bytes);
    return status;
}

static cublasStatus_t create_operation(cublasLtMatmulDesc_t *operation, cublasComputeType_t compute,
                                       cudaDataType_t scale) {
    cublasStatus_t status = real.MatmulDescCreate(operation, compute, scale);
    if (status) return status;
    READ_BACK(MatmulDescGetAttribute, *operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, &compute,
              sizeof(int32_t));
    READ_BACK(MatmulDescGetAttribute, *operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, &scale,
              sizeof(int32_t));
    return status;
}

static cublasStatus_t create_layout(cublasLtMatrixLayout_t *layout, cudaDataType_t type,
                                    uint64_t rows, uint64_t columns, int64_t stride) {
    cublasStatus_t status = real.MatrixLayoutCreate(layout, type, rows, columns, stride);
    if (status) return status;
    READ_BACK(MatrixLayoutGetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, 4);
    READ_BACK(MatrixLayoutGetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, 8);
    READ_BACK(MatrixLayoutGetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, 8);
    READ_BACK(MatrixLayoutGetAttribute, *layout, CUBLASLT_MATRIX_LAYOUT_LD, &stride, 8);
    return status;
}

/* ---- the library */

static bool load_real() {
    char file[64];
    glob_t paths = {};
    void *library = NULL;
    snprintf(file, sizeof file, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    cuda_library_paths(&paths, file);
    for (size_t i = 0; i < paths.gl_pathc && !library; i++)
        library = dlopen(paths.gl_pathv[i], RTLD_LAZY | RTLD_LOCAL);
    globfree(&paths);
    if (!library) return false;
    bool complete = true;
#define LOAD(table, name)                                             \
    *(void **)(void *)&table.name = dlsym(library, "cublasLt" #name); \
    complete = complete && table.name;
#define X(name) LOAD(real, name)
    CUBLASLT_FUNCTIONS(X)
#undef X
#define X(name) LOAD(get, name)
    GETTERS(X)
#undef X
    return complete && real.GetVersion() / 10000 == CUBLAS_VER_MAJOR &&
           (void *)real.Create != (void *)&cublasLtCreate;
}

/* The library rejects attributes of a wrong size; otherwise this test could not fail. */
static void check_sizes() {
    cublasLtMatmulDesc_t operation;
    int32_t transpose = CUBLAS_OP_T;
    uint64_t wide = CUBLASLT_EPILOGUE_BIAS;
    if (!expect(!real.MatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "create", 0,
                CUBLAS_STATUS_SUCCESS))
        return;
    cublasStatus_t narrow =
        real.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, 1);
    cublasStatus_t large =
        real.MatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &wide, sizeof wide);
    expect(narrow == CUBLAS_STATUS_INVALID_VALUE, "a size of 1 is accepted", 1, narrow);
    expect(large == CUBLAS_STATUS_INVALID_VALUE, "a size of 8 is accepted", 8, large);
    real.MatmulDescDestroy(operation);
}

static struct cuda_products *open_real() {
    struct cuda_products *products = (struct cuda_products *)calloc(1, sizeof *products);
    products->lt = real;
    products->lt.MatmulDescSetAttribute = set_operation;
    products->lt.MatmulPreferenceSetAttribute = set_preference;
    products->lt.MatmulDescCreate = create_operation;
    products->lt.MatrixLayoutCreate = create_layout;
    products->workspace_max = (size_t)32 << 20;
    if (real.Create(&products->handle)) products->handle = NULL;
    return products;
}

/* ---- matmuls */

/* Offers one matmul, if it is new. Without a GPU the heuristics are the first call to fail. */
static void offer(struct cuda_products *products, const struct product_key *key) {
    static const char heuristics[] = "cublasLtMatmulAlgoGetHeuristic:";
    cublasLtMatmulHeuristicResult_t algorithm;
    for (int i = 0; i < offered_count; i++)
        if (memcmp(&offered[i].key, key, sizeof *key) == 0) return;
    if (!expect(offered_count < OFFERED_MAX, "too many matmuls", OFFERED_MAX,
                CUBLAS_STATUS_SUCCESS))
        return;
    struct cuda_product *product = &offered[offered_count++];
    product->key = *key;
    if (product_describe(products, product) &&
        product_request(products, product, products->workspace_max, &algorithm, 1))
        return;
    const char *why = products->refusal;
    bool described = strncmp(why, heuristics, strlen(heuristics)) == 0;
    bool failed = products->handle ? strstr(why, "this is a bug") != NULL : !described;
    if (!products->handle && !failed) return;
    failures += failed;
    printf("%s: %lld x %lld x %lld, %s x %s to %s, transposed %d %d, epilogue %s: %s\n",
           failed ? "failed" : "refused", (long long)key->m, (long long)key->n, (long long)key->k,
           dtype_name((enum dtype)key->a_in), dtype_name((enum dtype)key->b_in),
           dtype_name((enum dtype)key->out), key->transpose_a, key->transpose_b,
           epilogue_names[key->epilogue], why);
}

/* Plans a run on the emulated GPU and offers the matmuls that it asked for. */
static int offer_run(struct cuda_products *products, const char *path, const char *const *settings,
                     int count) {
    struct backend_options options = {};
    struct config config;
    struct memory_plan plan;
    struct backend be;
    struct error error;
    options.device = DEVICE_CUDA;
    if (config_load(&config, path, (char *const *)settings, count, &error)) goto failed;
    options.tf32 = config.tf32;
    if (backend_open(&be, &options, &error)) goto failed;
    if (memory_plan_of(&plan, &config, &be, &error)) goto failed;
    for (int i = 0; cuda_matmul_planned(cuda_state(&be)->products, i); i++)
        offer(products, &cuda_matmul_planned(cuda_state(&be)->products, i)->key);
    backend_close(&be);
    return 0;
failed:
    printf("failed: %s: %s\n", path, error.text);
    return -1;
}

/* Each epilogue has to occur in some step: one that does not is not tested. */
static void report(const struct cuda_products *products) {
    int epilogues[EPILOGUES] = {}, scales[PRODUCT_SCALES] = {}, transposed = 0;
    for (int i = 0; i < offered_count; i++) {
        const struct product_key *key = &offered[i].key;
        epilogues[key->epilogue]++;
        scales[key->a_scale]++, scales[key->b_scale]++;
        transposed += key->transpose_a || key->transpose_b;
    }
    for (int i = 0; i < EPILOGUES; i++)
        expect(epilogues[i] > 0, "no matmul with epilogue", i, CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < PRODUCT_SCALES; i++)
        expect(scales[i] > 0, "no operand with scales", i, CUBLAS_STATUS_SUCCESS);
    printf("cuBLASLt %zu: %d matmuls (%d transposed", real.GetVersion(), offered_count, transposed);
    for (int i = 1; i < EPILOGUES; i++) printf(", %d %s", epilogues[i], epilogue_names[i]);
    for (int i = 1; i < PRODUCT_SCALES; i++)
        printf(", %d operands %s", scales[i], product_scale_names[i]);
    printf("), %ld attributes read back, %ld failures; %s\n", attributes, failures,
           products->handle ? "heuristics asked" : "no GPU, so heuristics were not asked");
}

int main() {
    static const char *const models[] = {"configs/gpt2-124m.json", "configs/smollm2-135m.json"};
    static const struct {
        int sm;
        const char *settings[3];
    } runs[] = {
        {90, {"precision=fp32"}},
        {90, {"precision=fp32", "tf32=true"}},
        {90, {"precision=bf16"}},
        {90, {"precision=bf16", "model.bias=none", "gradients.dtype=lower"}},
        {90, {"precision=fp16", "gradients.dtype=lower"}},
        {90, {"precision=fp8"}},
        {90, {"precision=fp8", "fp8.recipe=row"}},
        {90, {"precision=fp8", "fp8.format=e4m3", "fp8.fast_accumulation=false"}},
        {90, {"precision=fp8", "fp8.recipe=block"}},
        {100, {"precision=fp8", "fp8.recipe=block"}},
        {100, {"precision=mxfp8"}},
        {100, {"precision=mxfp8", "mx.format=hybrid"}},
        {100, {"precision=nvfp4"}},
        {120, {"precision=nvfp4", "nvfp4.square_blocks=false", "gradients.dtype=lower"}},
    };
    if (!load_real()) {
        printf("skipped: matmuls offered to cuBLASLt, because version %d of it is not here\n",
               CUBLAS_VER_MAJOR);
        return 0;
    }
    check_sizes();
    struct cuda_products *products = open_real();
    for (size_t model = 0; model < sizeof models / sizeof *models; model++)
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            int count = 1;
            while (count < 3 && runs[i].settings[count]) count++;
            cuda_emulator_capability(runs[i].sm);
            failures += offer_run(products, models[model], runs[i].settings, count) != 0;
        }
    report(products);
    for (int i = 0; i < offered_count; i++) product_discard(products, &offered[i]);
    cuda_products_close(products);
    return failures != 0;
}
