/* A fake of the part of cuBLASLt that we use, behind its real prototypes: true fp32 arithmetic
 * on column-major matrices. It rejects every argument that the real library rejects, with a line
 * on stderr, so layouts, strides, alignments, epilogues, pointers and workspaces are tested
 * without a GPU.
 *
 * Algorithms differ in their summation order. The one with the in-place reduction scheme changes
 * its order from call to call, so code that allows this scheme gets different bits each time. */
#include "test/cuda_emulator/fake_product.h"
#include "test/cuda_emulator/graphs.h"

#include <stdlib.h>
#include <string.h>

using namespace fake;

namespace {

struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment[4]; /* operands A, B, C, D */
};

static_assert(sizeof(algorithm) == sizeof(cublasLtMatmulAlgo_t), "");

enum { WORKSPACE_ALIGNMENT = 256, AUX_ALIGNMENT = 16 };
const uint64_t MAGIC = 0x66616b656c740001;

fake_cublaslt counts;

/* An epilogue named by the environment, see control.h; 0: none. */
uint32_t asked(const char *variable) {
    const char *value = getenv(variable);
    return value ? (uint32_t)atoi(value) : 0;
}

uint32_t refused[8] = {asked("CUBLASLT_REFUSE")}, refusals = refused[0] != 0, slow, slow_epilogue,
         misused;
struct {
    uint32_t epilogue, algorithm;
} lie = {asked("CUBLASLT_LIE"), 0};

const layout &of(cublasLtMatrixLayout_t handle) {
    return *reinterpret_cast<layout *>(handle);
}
const operation &of(cublasLtMatmulDesc_t handle) {
    return *reinterpret_cast<operation *>(handle);
}

size_t bytes_of(const layout &l) {
    return ((size_t)l.stride * (l.columns - 1) + l.rows) * bits_of(l.type) / 8;
}
uint32_t alignment_of(const void *p) {
    uintptr_t at = (uintptr_t)p;
    return (uint32_t)(at & -at & 0xfff);
}

problem gather(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    problem p = {&of(op), of(a), of(b), of(c), of(d), 0, 0, 0, false, false, 0, 0};
    p.m = p.d.rows;
    p.n = p.d.columns;
    p.k = p.op->transpose_a ? p.a.rows : p.a.columns;
    p.has_vector = p.op->epilogue & CUBLASLT_EPILOGUE_BIAS;
    p.has_aux = p.op->epilogue & 128;
    bool to_f32 = is_narrow(p.a.type) && p.d.type == CUDA_R_32F;
    p.vector_type = p.op->vector_type < 0 ? p.d.type : p.op->vector_type;
    if (to_f32 && p.op->vector_type < 0) p.vector_type = CUDA_R_16BF;
    p.aux_type = p.op->aux_type < 0 ? p.d.type : p.op->aux_type;
    return p;
}

bool known(int type) {
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF || is_narrow(type);
}

cublasStatus_t examine_epilogue(const problem &p) {
    static const uint32_t supported[] = {FAKE_DEFAULT, FAKE_BIAS, FAKE_GELU_AUX, FAKE_GELU_AUX_BIAS,
                                         FAKE_DGELU};
    bool found = false;
    for (uint32_t epilogue : supported) found |= p.op->epilogue == epilogue;
    SUPPORT(found, "an epilogue that is not emulated");
    if (misused && p.op->epilogue == misused) return CUBLAS_STATUS_INVALID_VALUE;
    for (uint32_t i = 0; i < refusals; i++)
        if (p.op->epilogue == refused[i]) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (p.has_vector) {
        REQUIRE(p.op->vector, "an epilogue without its bias pointer");
        SUPPORT(p.vector_type == p.d.type || is_narrow(p.a.type),
                "a bias that has not the type of the output");
        SUPPORT((uintptr_t)p.op->vector % size_of(p.vector_type) == 0, "a misaligned bias");
    }
    if (p.has_aux) {
        REQUIRE(p.op->aux, "an epilogue without its auxiliary pointer");
        SUPPORT(p.aux_type == p.d.type, "an auxiliary matrix that has not the output's type");
        REQUIRE(p.op->aux_stride >= (int64_t)p.m, "too small a leading dimension of aux");
        SUPPORT(p.op->aux_stride % 8 == 0, "a leading dimension of aux that is no multiple of 8");
        SUPPORT((uintptr_t)p.op->aux % AUX_ALIGNMENT == 0, "a misaligned auxiliary matrix");
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t examine(const problem &p) {
    const operation &op = *p.op;
    const layout *all[] = {&p.a, &p.b, &p.c, &p.d};
    for (const layout *l : all) {
        SUPPORT(known(l->type), "an unknown type");
        REQUIRE(l->rows > 0 && l->columns > 0, "an empty matrix");
        REQUIRE(l->stride >= (int64_t)l->rows, "too small a leading dimension");
    }
    bool fits = p.m == (op.transpose_a ? p.a.columns : p.a.rows) &&
                p.n == (op.transpose_b ? p.b.rows : p.b.columns) &&
                p.k == (op.transpose_b ? p.b.columns : p.b.rows) && p.c.rows == p.m &&
                p.c.columns == p.n;
    REQUIRE(fits, "shapes that do not fit each other");
    SUPPORT(p.c.type == p.d.type, "C and D of unlike types");
    SUPPORT(op.scale == CUDA_R_32F, "a scale type other than fp32");
    if (is_narrow(p.a.type) || is_narrow(p.b.type) || is_narrow(p.d.type)) {
        cublasStatus_t status = examine_narrow(p);
        return status ? status : examine_epilogue(p);
    }
    REQUIRE(!op.scale_a && !op.scale_b, "scales of operands that have not 8 bits");
    SUPPORT(p.a.type == p.b.type, "operands of unlike types");
    SUPPORT(p.d.type == CUDA_R_32F || p.d.type == p.a.type, "an output that A cannot give");
    SUPPORT(op.compute == CUBLAS_COMPUTE_32F ||
                (op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type == CUDA_R_32F),
            "a compute type that is not emulated");
    return examine_epilogue(p);
}

/* ---- algorithms */

uint64_t mix(uint64_t sum, uint64_t value) {
    return (sum ^ value) * 0x100000001b3 ^ sum >> 29;
}

/* Checksum of everything but pointers. */
uint64_t checksum(const problem &p) {
    const layout *all[] = {&p.a, &p.b, &p.c, &p.d};
    uint64_t sum = 0xcbf29ce484222325;
    for (const layout *l : all) {
        sum = mix(mix(sum, (uint64_t)l->type), l->rows);
        sum = mix(mix(sum, l->columns), (uint64_t)l->stride);
    }
    sum = mix(mix(sum, (uint64_t)p.op->compute), p.op->epilogue);
    sum = mix(mix(sum, (uint64_t)p.op->transpose_a), (uint64_t)p.op->transpose_b);
    sum = mix(mix(sum, p.op->scale_a != nullptr), p.op->scale_b != nullptr);
    sum = mix(mix(mix(sum, (uint64_t)p.op->mode_a), (uint64_t)p.op->mode_b),
              (uint64_t)p.op->pointers);
    return mix(mix(sum, (uint64_t)p.op->fast), (uint64_t)p.op->aux_stride);
}

/* The real library also splits k when there are few tiles and k is long. */
int list_variants(const problem &p, const preference &wish, fake_algorithm *list) {
    int count = 0;
    bool few = p.m * p.n <= 4096 && p.k >= 256;
    if (wish.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) list[count++] = FAKE_SPLIT_IN_PLACE;
    if (wish.reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE) list[count++] = FAKE_SPLIT_OUTPUT;
    bool splits = wish.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE && p.k >= SPLITS;
    if (splits && few) list[count++] = FAKE_SPLIT;
    list[count++] = FAKE_DIRECT;
    list[count++] = FAKE_BLOCKS;
    if (splits && !few) list[count++] = FAKE_SPLIT;
    return count;
}

uint64_t needed_workspace(const problem &p, fake_algorithm v) {
    return v >= FAKE_SPLIT ? p.m * p.n * SPLITS * sizeof(float) : 0;
}

algorithm make_algorithm(const problem &p, const preference &wish, fake_algorithm v) {
    algorithm made = {
        MAGIC, checksum(p), v, v >= FAKE_SPLIT ? SPLITS : 1u, {}, needed_workspace(p, v), 0};
    for (int i = 0; i < 4; i++) made.alignment[i] = wish.alignment[i];
    made.alignment[4] = p.has_vector ? alignment_of(p.op->vector) : 1;
    made.alignment[5] = p.has_aux ? alignment_of(p.op->aux) : 1;
    return made;
}

cublasStatus_t recognize(const problem &p, const cublasLtMatmulAlgo_t *data, algorithm *found) {
    REQUIRE(data, "no algorithm");
    memcpy(found, data, sizeof *found);
    REQUIRE(found->magic == MAGIC, "an algorithm that is none");
    REQUIRE(found->problem == checksum(p), "an algorithm of another problem");
    REQUIRE(found->variant >= FAKE_DIRECT && found->variant <= FAKE_SPLIT_IN_PLACE,
            "no such algorithm");
    REQUIRE(found->workspace_bytes == needed_workspace(p, (fake_algorithm)found->variant),
            "a damaged algorithm");
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- memory */

struct range {
    const void *data;
    size_t bytes;
    const char *name;
    bool written;
};

bool overlap(const range &x, const range &y) {
    const char *a = (const char *)x.data, *b = (const char *)y.data;
    return x.bytes && y.bytes && a < b + y.bytes && b < a + x.bytes;
}

cublasStatus_t examine_memory(const range *ranges, int count) {
    for (int i = 0; i < count; i++) {
        if (ranges[i].bytes && !emu::device_range(ranges[i].data, ranges[i].bytes)) {
            fprintf(stderr, "fake cublasLt: %s: ", ranges[i].name);
            return reject(CUBLAS_STATUS_INVALID_VALUE, "not within one piece of device memory");
        }
        for (int j = 0; j < i; j++)
            if ((ranges[i].written || ranges[j].written) && overlap(ranges[i], ranges[j])) {
                fprintf(stderr, "fake cublasLt: %s and %s: ", ranges[i].name, ranges[j].name);
                return reject(CUBLAS_STATUS_INVALID_VALUE, "they overlap");
            }
    }
    for (int i = 0; i < count; i++)
        emu::touched(ranges[i].data, ranges[i].bytes, ranges[i].written);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t examine_pointers(const problem &p, const algorithm &chosen, const matrices &with,
                                size_t workspace_bytes) {
    const operation &op = *p.op;
    const void *a = with.a, *b = with.b, *c = with.c, *d = with.d, *workspace = with.workspace;
    const void *pointers[] = {a, b, c, d, op.vector, op.aux};
    size_t vector = p.m * size_of(p.vector_type);
    layout aux = {p.aux_type, p.m, p.n, op.aux_stride};
    for (int i = 0; i < 6; i++) {
        bool used = i < 4 || (i == 4 ? p.has_vector : p.has_aux);
        REQUIRE(!used || (uintptr_t)pointers[i] % chosen.alignment[i] == 0,
                "a pointer that is less aligned than was promised");
    }
    for (int i = 0; i < 4 && is_narrow(p.a.type); i++)
        SUPPORT((uintptr_t)pointers[i] % NARROW_ALIGNMENT == 0, "a misaligned matrix, with 8 bits");
    REQUIRE(workspace_bytes >= chosen.workspace_bytes, "too small a workspace");
    REQUIRE(!chosen.workspace_bytes || (uintptr_t)workspace % WORKSPACE_ALIGNMENT == 0,
            "a misaligned workspace");
    range ranges[] = {
        {a, bytes_of(p.a), "A", false},
        {b, bytes_of(p.b), "B", false},
        {d, bytes_of(p.d), "D", true},
        {workspace, workspace_bytes, "workspace", true},
        {op.vector, p.has_vector ? vector : 0, "bias", !(op.epilogue & CUBLASLT_EPILOGUE_BIAS)},
        {op.aux, p.has_aux ? bytes_of(aux) : 0, "aux", op.epilogue != CUBLASLT_EPILOGUE_DGELU},
        {c, c == d ? 0 : bytes_of(p.c), "C", false},
        {op.scale_a, op.scale_a ? block_scale_bytes(op.mode_a, p.m, p.k) : 0, "scale of A", false},
        {op.scale_b, op.scale_b ? block_scale_bytes(op.mode_b, p.n, p.k) : 0, "scale of B", false},
        {with.device_alpha, with.device_alpha ? sizeof(float) : 0, "alpha", false},
        {with.device_beta, with.device_beta ? sizeof(float) : 0, "beta", false},
    };
    cublasStatus_t status = examine_memory(ranges, sizeof ranges / sizeof *ranges);
    if (status) return status;
    REQUIRE(block_scales_are_padded(op.scale_a, op.mode_a, p.m, p.k) &&
                block_scales_are_padded(op.scale_b, op.mode_b, p.n, p.k),
            "scales of blocks past the last that are not 0");
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- attributes: the field that holds each, and its size */

struct place {
    void *at;
    size_t bytes;
};

place attribute(operation *op, cublasLtMatmulDescAttributes_t which) {
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return {&op->transpose_a, 4};
    case CUBLASLT_MATMUL_DESC_TRANSB: return {&op->transpose_b, 4};
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return {&op->epilogue, 4};
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return {&op->vector, 8};
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return {&op->vector_type, 4};
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return {&op->aux, 8};
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return {&op->aux_stride, 8};
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return {&op->aux_type, 4};
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return {&op->scale_a, 8};
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return {&op->scale_b, 8};
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return {&op->mode_a, 4};
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return {&op->mode_b, 4};
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return {&op->pointers, 4};
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return {&op->fast, 1};
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET: return {&op->target, 4};
    default: return {nullptr, 0};
    }
}

place attribute(preference *wish, cublasLtMatmulPreferenceAttributes_t which) {
    switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return {&wish->workspace_bytes, 8};
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return {&wish->reductions, 4};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return {&wish->alignment[0], 4};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return {&wish->alignment[1], 4};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return {&wish->alignment[2], 4};
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return {&wish->alignment[3], 4};
    default: return {nullptr, 0};
    }
}

cublasStatus_t set(place to, const void *value, size_t bytes) {
    REQUIRE(to.at && value, "an attribute that is not emulated");
    REQUIRE(to.bytes == bytes, "an attribute of another size");
    memcpy(to.at, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

template <typename Object, typename Handle>
cublasStatus_t make(Handle *handle, const Object &value) {
    counts.alive++;
    *handle = reinterpret_cast<Handle>(new Object(value));
    return CUBLAS_STATUS_SUCCESS;
}

template <typename Object, typename Handle> cublasStatus_t destroy(Handle handle) {
    counts.alive--;
    delete reinterpret_cast<Object *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

extern "C" {

const struct fake_cublaslt *fake_cublaslt_counts(void) {
    return &counts;
}
void fake_cublaslt_refuse(int epilogue) {
    if (epilogue == 0) refusals = 0;
    else refused[refusals++ % 8] = (uint32_t)epilogue;
}
void fake_cublaslt_misuse(int epilogue) {
    misused = (uint32_t)epilogue;
}
void fake_cublaslt_slow(int algorithm) {
    slow = (uint32_t)algorithm;
}

void fake_cublaslt_slow_epilogue(int epilogue) {
    slow_epilogue = (uint32_t)epilogue;
}
void fake_cublaslt_lie(int epilogue, int algorithm) {
    lie.epilogue = (uint32_t)epilogue;
    lie.algorithm = (uint32_t)algorithm;
}

size_t cublasLtGetVersion(void) {
    return CUBLAS_VERSION;
}
const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported (fake)" : "failure (fake)";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    SUPPORT(!emu::must_fail("cublasLtCreate"), "it was told to fail");
    return make(handle, MAGIC);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    return destroy<uint64_t>(handle);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *op, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    operation made = {};
    made.compute = compute;
    made.scale = scale;
    made.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    made.vector_type = made.aux_type = -1;
    counts.operations++;
    return make(op, made);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op) {
    return destroy<operation>(op);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes) {
    return set(attribute(reinterpret_cast<operation *>(op), which), value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
    return make(l, layout{type, rows, columns, stride});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
    return destroy<layout>(l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *wish) {
    return make(wish, preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
    return destroy<preference>(wish);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void *value, size_t bytes) {
    return set(attribute(reinterpret_cast<preference *>(wish), which), value, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wishes, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int *got) {
    const preference &wish = *reinterpret_cast<preference *>(wishes);
    problem p = gather(op, a, b, c, d);
    fake_algorithm list[8];
    *got = 0;
    counts.queries++;
    REQUIRE(wanted > 0, "no algorithms wanted");
    SUPPORT(!emu::must_fail("cublasLtMatmulAlgoGetHeuristic"), "it was told to fail");
    cublasStatus_t status = examine(p);
    if (status) return status;
    int count = list_variants(p, wish, list);
    for (int i = 0; i < count && *got < wanted; i++) {
        algorithm made = make_algorithm(p, wish, list[i]);
        if (made.workspace_bytes > wish.workspace_bytes) continue;
        cublasLtMatmulHeuristicResult_t *result = &results[(*got)++];
        *result = {};
        memcpy(&result->algo, &made, sizeof made);
        result->workspaceSize = made.workspace_bytes;
        result->state = CUBLAS_STATUS_SUCCESS;
    }
    return *got ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    problem p = gather(op, a, b, c, d);
    algorithm found;
    cublasStatus_t status = examine(p);
    if (!status) status = recognize(p, algo, &found);
    if (status) return status;
    *result = {};
    result->algo = *algo;
    result->workspaceSize = found.workspace_bytes;
    result->state = CUBLAS_STATUS_SUCCESS;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t multiply(const problem &p, const algorithm &chosen, const matrices &with,
                               size_t workspace_bytes, cudaStream_t stream) {
    emu::work_begin(stream);
    matrices now = with;
    cublasStatus_t status = examine_pointers(p, chosen, with, workspace_bytes);
    if (!status && with.device_alpha) now.alpha = *with.device_alpha, now.beta = *with.device_beta;
    if (!status) compute(p, (fake_algorithm)chosen.variant, now);
    emu::work_end();
    if (status) return status;
    counts.products++, counts.in_blocks += is_mode_of_blocks(p.op->mode_a);
    counts.epilogue = (int)p.op->epilogue;
    counts.algorithm = (int)chosen.variant;
    counts.a_type = p.a.type, counts.b_type = p.b.type;
    counts.a_mode = p.op->mode_a, counts.b_mode = p.op->mode_b;
    counts.target = p.op->target;
    counts.fast = p.op->fast, counts.scaled = p.op->scale_a && p.op->scale_b;
    if (chosen.variant == slow || p.op->epilogue == slow_epilogue) emu::time_passes(3000);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream) {
    problem p = gather(op, a_layout, b_layout, c_layout, d_layout);
    algorithm chosen;
    bool on_device = of(op).pointers == CUBLASLT_POINTER_MODE_DEVICE;
    float scale = on_device ? 1 : *(const float *)alpha,
          kept = on_device ? 1 : *(const float *)beta;
    REQUIRE(handle && *(uint64_t *)handle == MAGIC, "no handle");
    cublasStatus_t status = examine(p);
    if (!status) status = recognize(p, algo, &chosen);
    if (status) return status;
    SUPPORT(kept == 0 || p.c.stride == p.d.stride, "C and D of unlike layouts");
    SUPPORT(!emu::must_fail("cublasLtMatmul"), "it was told to fail");
    SUPPORT(lie.epilogue != (uint32_t)p.op->epilogue ||
                (lie.algorithm && lie.algorithm != (uint32_t)chosen.variant),
            "what its heuristics have offered");
    const matrices with = {a,
                           b,
                           c,
                           d,
                           workspace,
                           scale,
                           kept,
                           on_device ? (const float *)alpha : nullptr,
                           on_device ? (const float *)beta : nullptr};
    if (!emu::recording(stream)) return multiply(p, chosen, with, workspace_bytes, stream);
    operation described = *p.op; /* the current state */
    emu::record(
        stream,
        [=](cudaStream_t on) {
            problem later = p;
            later.op = &described;
            multiply(later, chosen, with, workspace_bytes, on);
        },
        &with, sizeof with);
    return CUBLAS_STATUS_SUCCESS;
}
}
