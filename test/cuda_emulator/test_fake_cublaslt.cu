/* Matmuls of operands of 8 and 4 bits that the fake cuBLASLt must reject, as the library does. */
#ifndef __CUDACC__
#include "test/cuda_emulator/test_emulator.h"

#include "test/cuda_emulator/fake_cublaslt.h"

#include <cublasLt.h>

/* A matmul described through the API, without workspace: A is [k, m] transposed, B is [k, n]. */
struct request {
    cudaDataType_t a, b, out, vector;
    uint64_t m, n, k;
    int32_t transpose_a, transpose_b;
    cublasComputeType_t compute;
    uint32_t epilogue;
    int32_t a_mode, b_mode; /* cublasLtMatmulMatrixScale_t */
    int8_t fast;
};

static const request good = {CUDA_R_8F_E4M3,
                             CUDA_R_8F_E5M2,
                             CUDA_R_16BF,
                             CUDA_R_16BF,
                             32,
                             48,
                             16,
                             CUBLAS_OP_T,
                             CUBLAS_OP_N,
                             CUBLAS_COMPUTE_32F,
                             CUBLASLT_EPILOGUE_DEFAULT,
                             0,
                             0,
                             1};

struct forms {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, out;
};

static const float *no_scale;

static forms fill_in(const request &w, const float *scale) {
    forms f;
    bool ta = w.transpose_a == CUBLAS_OP_T, tb = w.transpose_b == CUBLAS_OP_T;
    const void *vector = (const void *)256;
    int32_t type = w.vector;
    cublasLtMatmulDescCreate(&f.op, w.compute, CUDA_R_32F);
#define SET(attribute, value) \
    cublasLtMatmulDescSetAttribute(f.op, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value))
    CHECK(SET(TRANSA, w.transpose_a) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(TRANSB, w.transpose_b) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(EPILOGUE, w.epilogue) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(BIAS_POINTER, vector) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(BIAS_DATA_TYPE, type) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(A_SCALE_POINTER, scale) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(B_SCALE_POINTER, scale) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(FAST_ACCUM, w.fast) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(A_SCALE_MODE, w.a_mode) == CUBLAS_STATUS_SUCCESS);
    CHECK(SET(B_SCALE_MODE, w.b_mode) == CUBLAS_STATUS_SUCCESS);
#undef SET
    cublasLtMatrixLayoutCreate(&f.a, w.a, ta ? w.k : w.m, ta ? w.m : w.k,
                               (int64_t)(ta ? w.k : w.m));
    cublasLtMatrixLayoutCreate(&f.b, w.b, tb ? w.n : w.k, tb ? w.k : w.n,
                               (int64_t)(tb ? w.n : w.k));
    cublasLtMatrixLayoutCreate(&f.out, w.out, w.m, w.n, (int64_t)w.m);
    return f;
}

static void throw_away(const forms &f) {
    cublasLtMatmulDescDestroy(f.op);
    cublasLtMatrixLayoutDestroy(f.a);
    cublasLtMatrixLayoutDestroy(f.b);
    cublasLtMatrixLayoutDestroy(f.out);
}

static int find(const forms &f, cublasLtMatmulHeuristicResult_t *result) {
    cublasLtMatmulPreference_t preference;
    int got = 0;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulAlgoGetHeuristic(NULL, f.op, f.a, f.b, f.out, f.out, preference, 1, result, &got);
    cublasLtMatmulPreferenceDestroy(preference);
    return got;
}

static bool is_taken(const request &w, const float *scale = no_scale) {
    cublasLtMatmulHeuristicResult_t result;
    forms f = fill_in(w, scale);
    int got = find(f, &result);
    throw_away(f);
    return got == 1;
}

static void test_forms() {
    request w = good;
    const float *some = (const float *)256;
    CHECK(is_taken(w) && is_taken(w, some));
    w.a = CUDA_R_8F_E5M2, w.b = CUDA_R_8F_E4M3;
    CHECK(is_taken(w));
    w.b = CUDA_R_8F_E5M2;
    CHECK(!is_taken(w));
    w.b = CUDA_R_16BF;
    CHECK(!is_taken(w));
    w = good, w.transpose_a = CUBLAS_OP_N;
    CHECK(!is_taken(w));
    w = good, w.transpose_b = CUBLAS_OP_T;
    CHECK(!is_taken(w));
    w = good, w.m = 40;
    CHECK(!is_taken(w));
    w = good, w.n = 40;
    CHECK(!is_taken(w));
    w = good, w.k = 24;
    CHECK(!is_taken(w));
    w = good, w.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    CHECK(!is_taken(w));
    w = good, w.epilogue = CUBLASLT_EPILOGUE_BGRADA;
    CHECK(!is_taken(w));
    w = good, w.a = w.b = CUDA_R_16BF;
    CHECK(is_taken(w) && !is_taken(w, some));
}

static void test_biases() {
    request w = good;
    w.epilogue = CUBLASLT_EPILOGUE_BIAS;
    CHECK(is_taken(w));
    w.out = CUDA_R_32F; /* a bias is bf16 with that, too */
    CHECK(is_taken(w));
    w.vector = CUDA_R_32F;
    CHECK(!is_taken(w));
    w.out = CUDA_R_16F;
    CHECK(!is_taken(w));
    w.vector = CUDA_R_16F;
    CHECK(is_taken(w));
}

/* Support by compute capability. */
static void test_capability() {
    cudaDeviceProp properties;
    for (int sm : {80, 86, 89, 90}) {
        cuda_emulator_capability(sm);
        CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
        CHECK(properties.major == sm / 10 && properties.minor == sm % 10);
        CHECK(is_taken(good) == (sm >= 89));
    }
}

/* Modes of scales by capability and element, in pairs that go together. */
static void test_blocks() {
    static const struct {
        cudaDataType_t type;
        int32_t a, b;
        int least, most; /* capabilities that have it */
    } cases[] = {
        {CUDA_R_8F_E4M3, FAKE_VEC32, FAKE_VEC32, 100, 120},
        {CUDA_R_8F_E4M3, FAKE_VEC32, FAKE_SCALAR, 999, 0},
        {CUDA_R_8F_E4M3, FAKE_VEC16, FAKE_VEC16, 999, 0},
        {CUDA_R_4F_E2M1, FAKE_VEC16, FAKE_VEC16, 100, 120},
        {CUDA_R_4F_E2M1, FAKE_VEC32, FAKE_VEC32, 999, 0},
        {CUDA_R_4F_E2M1, FAKE_SCALAR, FAKE_SCALAR, 999, 0},
        {CUDA_R_8F_E4M3, FAKE_VEC128, FAKE_VEC128, 90, 90},
        {CUDA_R_8F_E4M3, FAKE_VEC128, FAKE_BLK128, 90, 90},
        {CUDA_R_8F_E4M3, FAKE_BLK128, FAKE_VEC128, 90, 90},
        {CUDA_R_8F_E4M3, FAKE_BLK128, FAKE_BLK128, 999, 0},
    };
    const float *some = (const float *)256, *misaligned = (const float *)8;
    for (int sm : {89, 90, 100, 120})
        for (const auto &one : cases) {
            request w = good;
            cuda_emulator_capability(sm);
            w.a = w.b = one.type, w.a_mode = one.a, w.b_mode = one.b;
            w.m = w.n = w.k = 128, w.fast = 0;
            bool has = sm >= one.least && sm <= one.most;
            CHECK(is_taken(w, some) == has);
            CHECK(!has || (!is_taken(w) && !is_taken(w, misaligned)));
            w.fast = 1;
            CHECK(!has || !is_taken(w, some));
            w.fast = 0, w.n = 144;
            CHECK(is_taken(w, some) == (has && one.type != CUDA_R_4F_E2M1));
        }
    cuda_emulator_capability(90);
}

/* Scales are read on the device; 0x38 is 1 in E4M3, 0x3c in E5M2. */
static void test_scales() {
    cublasLtHandle_t handle;
    cublasLtMatmulHeuristicResult_t result;
    request w = good;
    w.out = CUDA_R_32F;
    buffer<uint8_t> a = make_buffer<uint8_t>(w.m * w.k), b = make_buffer<uint8_t>(w.k * w.n);
    buffer<float> scale = make_buffer<float>(1), out = make_buffer<float>(w.m * w.n);
    memset(a.host, 0x38, a.count), memset(b.host, 0x3c, b.count);
    scale.host[0] = 0.25f;
    upload(a), upload(b), upload(scale);
    CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    for (int on_the_host = 0; on_the_host < 2; on_the_host++) {
        forms f = fill_in(w, on_the_host ? scale.host : scale.device);
        float one = 1, zero = 0;
        CHECK(!cublasLtMatmulDescSetAttribute(f.op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                              &scale.device, sizeof scale.device));
        CHECK(find(f, &result) == 1);
        cublasStatus_t status =
            cublasLtMatmul(handle, f.op, &one, a.device, f.a, b.device, f.b, &zero, out.device,
                           f.out, out.device, f.out, &result.algo, NULL, 0, NULL);
        CHECK((status == CUBLAS_STATUS_SUCCESS) == !on_the_host);
        throw_away(f);
    }
    download(out);
    for (size_t i = 0; i < out.count; i++) CHECK(out.host[i] == (float)w.k * 0.0625f);
    CHECK(cublasLtDestroy(handle) == CUBLAS_STATUS_SUCCESS);
    drop(a), drop(b), drop(scale), drop(out);
}

void test_fake_cublaslt() {
    test_forms();
    test_biases();
    test_capability();
    test_blocks();
    test_scales();
}
#endif
