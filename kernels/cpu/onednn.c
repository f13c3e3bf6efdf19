#include "kernels/cpu/product_library.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/level.h"

struct product_library {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    char failed[IMPLEMENTATION_NAME_MAX]; /* see library_failed */
};

enum operand { OPERAND_A, OPERAND_B, OPERAND_OUT, OPERAND_BIAS, OPERAND_SCRATCH, OPERANDS };

struct cpu_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[OPERANDS]; /* bias is NULL if there is none */
    size_t scratch_bytes;
    char implementation[IMPLEMENTATION_NAME_MAX];
};

void library_describe(char *text, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

/* Takes effect in the first call of a process only, which is enough: the environment does not
 * change. */
static void limit_instructions(const struct cpu_level *level) {
#ifdef __x86_64__
    static const dnnl_cpu_isa_t isas[] = {
        [2] = dnnl_cpu_isa_sse41, [3] = dnnl_cpu_isa_avx2, [4] = dnnl_cpu_isa_avx512_core};
    bool user_limit = getenv("ONEDNN_MAX_CPU_ISA") || getenv("DNNL_MAX_CPU_ISA");
    if (!user_limit) dnnl_set_max_cpu_isa(isas[level->number]);
#else
    (void)level;
#endif
}

bool library_has_fast_bf16(const struct product_library *library) {
    (void)library;
#ifdef __x86_64__
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    bool amx = (isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx;
    bool bf16 = (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
    return amx || (bf16 && !cpu_bf16_at_half_rate());
#else
    return true;
#endif
}

/* Measured by test_memory_peak.c with oneDNN 2.6.3 and 3.7.2, on 1 to 8 threads. The later version
 * multiplies the planned operands in place, but has 7 MiB of code, and keeps 0.1 to 0.3 MiB of
 * generated code and descriptors in the heap for each distinct product: a model has 16, with
 * adapters or samples up to 30. */
size_t library_own_bytes(const struct product_library *library, int threads) {
    size_t code = 0, buffers = 0; /* in MiB; buffers are for each thread */
    (void)library;
#ifdef __x86_64__
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    bool avx512 = (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
    bool avx2 = (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2;
    if (dnnl_version()->major >= 3) {
        code = avx512 || avx2 ? 13 : 9;
    } else {
        code = avx512 ? 6 : avx2 ? 8 : 4;
        buffers = avx512 ? 1 : 4;
    }
#endif
    /* Each thread's part of a product, and so its buffers, shrinks with more threads. */
    return (code + buffers * (size_t)(threads < 8 ? threads : 8)) << 20;
}

struct product_library *library_open(const struct cpu_level *level, bool keep_to_level) {
    if (keep_to_level) limit_instructions(level);
    struct product_library *library = calloc(1, sizeof *library);
    if (!library) return NULL;
    if (dnnl_engine_create(&library->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags) ==
            dnnl_success)
        return library;
    library_close(library);
    return NULL;
}

void library_close(struct product_library *library) {
    if (!library) return;
    if (library->stream) dnnl_stream_destroy(library->stream);
    if (library->engine) dnnl_engine_destroy(library->engine);
    free(library);
}

static dnnl_data_type_t data_type(int32_t dtype) {
    static const dnnl_data_type_t types[] = {
        [DTYPE_F32] = dnnl_f32, [DTYPE_F16] = dnnl_f16, [DTYPE_BF16] = dnnl_bf16};
    return types[dtype];
}

/* Description of a product for oneDNN. */
struct request {
    const struct product_shape *shape;
    dnnl_memory_desc_t layouts[OPERAND_SCRATCH];
    dnnl_primitive_attr_t attributes;
};

/* Version 2 describes memory by value, version 3 by a handle that must be destroyed. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t layout_reference;
static layout_reference refer(const dnnl_memory_desc_t *layout) {
    return *layout;
}
static void layout_drop(dnnl_memory_desc_t *layout) {
    if (*layout) dnnl_memory_desc_destroy(*layout);
}
static bool layout_make(dnnl_memory_desc_t *layout, const dnnl_dims_t shape, int32_t dtype,
                        const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(layout, 2, shape, data_type(dtype), strides) ==
           dnnl_success;
}
static dnnl_status_t append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0f, 0, dnnl_data_type_undef);
}
/* Iterator over the library's implementations of a product, the preferred one first. */
struct implementations {
    dnnl_primitive_desc_t description; /* the current implementation */
};
static bool implementations_open(struct implementations *list, dnnl_engine_t engine,
                                 const struct request *request) {
    const dnnl_memory_desc_t *layouts = request->layouts; /* the layout of an absent bias is NULL */
    return dnnl_matmul_primitive_desc_create(
               &list->description, engine, layouts[OPERAND_A], layouts[OPERAND_B],
               layouts[OPERAND_BIAS], layouts[OPERAND_OUT], request->attributes) == dnnl_success;
}
static bool implementations_next(struct implementations *list) {
    return dnnl_primitive_desc_next_impl(list->description) == dnnl_success;
}
static void implementations_close(struct implementations *list) {
    if (list->description) dnnl_primitive_desc_destroy(list->description);
    *list = (struct implementations){0};
}
#else
typedef const dnnl_memory_desc_t *layout_reference;
static layout_reference refer(const dnnl_memory_desc_t *layout) {
    return layout;
}
static void layout_drop(dnnl_memory_desc_t *layout) {
    (void)layout;
}
static bool layout_make(dnnl_memory_desc_t *layout, const dnnl_dims_t shape, int32_t dtype,
                        const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(layout, 2, shape, data_type(dtype), strides) ==
           dnnl_success;
}
static dnnl_status_t append_sum(dnnl_post_ops_t operations) {
    return dnnl_post_ops_append_sum(operations, 1.0f);
}
struct implementations {
    dnnl_primitive_desc_t description;
    dnnl_primitive_desc_iterator_t iterator;
    dnnl_matmul_desc_t matmul; /* the iterator reads it */
};
static bool implementations_open(struct implementations *list, dnnl_engine_t engine,
                                 const struct request *request) {
    const dnnl_memory_desc_t *layouts = request->layouts;
    const dnnl_memory_desc_t *bias = request->shape->bias < 0 ? NULL : &layouts[OPERAND_BIAS];
    if (dnnl_matmul_desc_init(&list->matmul, &layouts[OPERAND_A], &layouts[OPERAND_B], bias,
                              &layouts[OPERAND_OUT]) != dnnl_success ||
        dnnl_primitive_desc_iterator_create(&list->iterator, &list->matmul, request->attributes,
                                            engine, NULL) != dnnl_success)
        return false;
    list->description = dnnl_primitive_desc_iterator_fetch(list->iterator);
    return list->description != NULL;
}
static bool implementations_next(struct implementations *list) {
    if (dnnl_primitive_desc_iterator_next(list->iterator) != dnnl_success) return false;
    dnnl_primitive_desc_destroy(list->description);
    list->description = dnnl_primitive_desc_iterator_fetch(list->iterator);
    return list->description != NULL;
}
static void implementations_close(struct implementations *list) {
    if (list->description) dnnl_primitive_desc_destroy(list->description);
    if (list->iterator) dnnl_primitive_desc_iterator_destroy(list->iterator);
    *list = (struct implementations){0};
}
#endif

static bool make_layouts(dnnl_memory_desc_t layouts[], const struct product_shape *s) {
    const dnnl_dims_t a = {s->m, s->k}, b = {s->k, s->n}, out = {s->m, s->n}, bias = {1, s->n};
    const dnnl_dims_t a_strides = {s->transpose_a ? 1 : s->k, s->transpose_a ? s->m : 1};
    const dnnl_dims_t b_strides = {s->transpose_b ? 1 : s->n, s->transpose_b ? s->k : 1};
    const dnnl_dims_t out_strides = {s->n, 1};
    return layout_make(&layouts[OPERAND_A], a, s->in, a_strides) &&
           layout_make(&layouts[OPERAND_B], b, s->in, b_strides) &&
           layout_make(&layouts[OPERAND_OUT], out, s->out, out_strides) &&
           (s->bias < 0 || layout_make(&layouts[OPERAND_BIAS], bias, s->bias, out_strides));
}

/* Scratch memory is provided by the caller, so that the memory plan includes it. */
static dnnl_primitive_attr_t make_attributes(bool accumulate) {
    dnnl_primitive_attr_t attributes = NULL;
    if (dnnl_primitive_attr_create(&attributes) != dnnl_success) return NULL;
    dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user);
    if (!accumulate) return attributes;
    dnnl_post_ops_t operations = NULL;
    bool good = dnnl_post_ops_create(&operations) == dnnl_success &&
                append_sum(operations) == dnnl_success &&
                dnnl_primitive_attr_set_post_ops(attributes, operations) == dnnl_success;
    if (operations) dnnl_post_ops_destroy(operations);
    if (good) return attributes;
    dnnl_primitive_attr_destroy(attributes);
    return NULL;
}

static const char *name_of(const struct implementations *list) {
    const char *name = "";
    dnnl_primitive_desc_query(list->description, dnnl_query_impl_info_str, 0, (void *)&name);
    return name;
}

/* True for the library's plain loop, the fallback where it has no other implementation. */
static bool is_reference(const struct implementations *list) {
    return strncmp(name_of(list), "ref", 3) == 0;
}

/* False for the plain loop in 16 bit: a product of operands widened to fp32 is faster. */
static bool is_useful(const struct implementations *list, const struct product_shape *shape) {
    return shape->in == DTYPE_F32 || !is_reference(list);
}

/* With AVX-512 the library prefers "brg", which reads b in place unless b is transposed. That is
 * slow if b exceeds the caches near the cores: there "gemm", which copies b into panels, takes as
 * little as half the time. For smaller b it takes up to a third more. Measured in fp32 on two kinds
 * of Xeon with versions 2.6.3 and 3.2, see scripts/results/products.md. */
static bool prefers_panels(const struct product_shape *shape, const char *preferred) {
    const int64_t cache_floats = 1 << 20;
    return shape->in == DTYPE_F32 && !shape->transpose_b && shape->k * shape->n > cache_floats &&
           strstr(preferred, "brg");
}

static bool request_open(struct request *request, const struct product_shape *shape) {
    memset(request, 0, sizeof *request);
    request->shape = shape;
    request->attributes = make_attributes(shape->accumulate);
    return request->attributes && make_layouts(request->layouts, shape);
}

static void request_close(struct request *request) {
    if (request->attributes) dnnl_primitive_attr_destroy(request->attributes);
    for (int i = OPERAND_A; i <= OPERAND_BIAS; i++) layout_drop(&request->layouts[i]);
}

/* Advances to the first implementation whose name starts with these `count` characters. Returns
 * false if there is none. */
static bool find(struct implementations *list, const struct request *request, dnnl_engine_t engine,
                 const char *prefix, size_t count) {
    implementations_close(list);
    bool more = implementations_open(list, engine, request);
    while (more && strncmp(name_of(list), prefix, count) != 0) more = implementations_next(list);
    return more;
}

static bool choose(struct implementations *list, const struct request *request,
                   dnnl_engine_t engine, const char *name) {
    if (name) return find(list, request, engine, name, strlen(name) + 1);
    if (!find(list, request, engine, "", 0)) return false;
    return !prefers_panels(request->shape, name_of(list)) ||
           find(list, request, engine, "gemm", 4) || find(list, request, engine, "", 0);
}

static bool build(struct product_library *library, struct cpu_product *product,
                  dnnl_primitive_desc_t description, const dnnl_memory_desc_t layouts[],
                  bool bias) {
    dnnl_engine_t engine = library->engine;
    bool good = dnnl_primitive_create(&product->primitive, description) == dnnl_success;
    for (int i = OPERAND_A; i <= OPERAND_BIAS; i++)
        if (i != OPERAND_BIAS || bias)
            good = good && dnnl_memory_create(&product->memory[i], refer(&layouts[i]), engine,
                                              DNNL_MEMORY_NONE) == dnnl_success;
    layout_reference scratch =
        dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    product->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    return good && dnnl_memory_create(&product->memory[OPERAND_SCRATCH], scratch, engine,
                                      DNNL_MEMORY_NONE) == dnnl_success;
}

static bool listed(char names[][IMPLEMENTATION_NAME_MAX], int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Skips repeated names: on arm64 the library lists an implementation from its cache twice. */
int library_implementations(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX],
                            struct product_library *library, const struct product_shape *shape) {
    struct request request;
    struct implementations list = {0};
    int count = 0;
    bool more =
        request_open(&request, shape) && implementations_open(&list, library->engine, &request);
    for (; more && count < IMPLEMENTATIONS_MAX; more = implementations_next(&list))
        if (is_useful(&list, shape) && (count == 0 || !is_reference(&list)) &&
            !listed(names, count, name_of(&list)))
            snprintf(names[count++], IMPLEMENTATION_NAME_MAX, "%s", name_of(&list));
    implementations_close(&list);
    request_close(&request);
    return count;
}

struct cpu_product *library_prepare(struct product_library *library,
                                    const struct product_shape *shape, const char *implementation) {
    struct request request;
    struct implementations list = {0};
    struct cpu_product *product = calloc(1, sizeof *product);
    library->failed[0] = 0;
    bool found = product && request_open(&request, shape) &&
                 choose(&list, &request, library->engine, implementation) &&
                 is_useful(&list, shape);
    bool good =
        found && build(library, product, list.description, request.layouts, shape->bias >= 0);
    if (found)
        snprintf(good ? product->implementation : library->failed, IMPLEMENTATION_NAME_MAX, "%s",
                 name_of(&list));
    implementations_close(&list);
    if (product) request_close(&request);
    if (good) return product;
    library_discard(product);
    return NULL;
}

void library_discard(struct cpu_product *product) {
    if (!product) return;
    if (product->primitive) dnnl_primitive_destroy(product->primitive);
    for (int i = 0; i < OPERANDS; i++)
        if (product->memory[i]) dnnl_memory_destroy(product->memory[i]);
    free(product);
}

const char *library_failed(const struct product_library *library) {
    return library->failed[0] ? library->failed : NULL;
}

const char *library_implementation(const struct cpu_product *product) {
    return product->implementation;
}

size_t library_scratch_bytes(const struct cpu_product *product) {
    return product->scratch_bytes;
}

bool library_run(struct product_library *library, const struct cpu_product *product, void *out,
                 const void *a, const void *b, const void *bias, void *scratch) {
    void *const data[OPERANDS] = {(void *)a, (void *)b, out, (void *)bias, scratch};
    static const int names[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS,
                                        DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t arguments[OPERANDS];
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (!product->memory[i]) continue;
        if (dnnl_memory_set_data_handle(product->memory[i], data[i]) != dnnl_success) return false;
        arguments[count++] = (dnnl_exec_arg_t){names[i], product->memory[i]};
    }
    return dnnl_primitive_execute(product->primitive, library->stream, count, arguments) ==
               dnnl_success &&
           dnnl_stream_wait(library->stream) == dnnl_success;
}
