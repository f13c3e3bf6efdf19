#include "kernels/cpu/onednn.h"

#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/level.h"

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

enum operand { OPERAND_A, OPERAND_B, OPERAND_OUT, OPERAND_BIAS, OPERAND_SCRATCH, OPERANDS };

struct onednn_product {
    dnnl_primitive_t primitive;
    dnnl_memory_t memory[OPERANDS]; /* bias is NULL if there is none */
    size_t scratch_bytes;
};

void onednn_describe(char *text, size_t size) {
    const dnnl_version_t *version = dnnl_version();
    snprintf(text, size, "oneDNN %d.%d.%d", version->major, version->minor, version->patch);
}

/* Takes effect in the first call of a process alone, which is enough: the environment does not
 * change. */
static void limit(const struct cpu_level *level) {
#ifdef __x86_64__
    static const dnnl_cpu_isa_t isas[] = {
        [2] = dnnl_cpu_isa_sse41, [3] = dnnl_cpu_isa_avx2, [4] = dnnl_cpu_isa_avx512_core};
    bool said = getenv("ONEDNN_MAX_CPU_ISA") || getenv("DNNL_MAX_CPU_ISA");
    if (!said) dnnl_set_max_cpu_isa(isas[level->number]);
#else
    (void)level;
#endif
}

bool onednn_has_bf16(const struct onednn *library) {
    (void)library;
#ifdef __x86_64__
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) ==
           dnnl_cpu_isa_avx512_core_bf16;
#else
    return true;
#endif
}

struct onednn *onednn_open(const struct cpu_level *level, bool keep_to_level) {
    if (keep_to_level) limit(level);
    struct onednn *library = calloc(1, sizeof *library);
    if (!library) return NULL;
    if (dnnl_engine_create(&library->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&library->stream, library->engine, dnnl_stream_default_flags) ==
            dnnl_success)
        return library;
    onednn_close(library);
    return NULL;
}

void onednn_close(struct onednn *library) {
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
static dnnl_status_t describe(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              dnnl_memory_desc_t *layouts, bool bias,
                              dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(
        description, engine, layouts[OPERAND_A], layouts[OPERAND_B],
        bias ? layouts[OPERAND_BIAS] : NULL, layouts[OPERAND_OUT], attributes);
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
static dnnl_status_t describe(dnnl_primitive_desc_t *description, dnnl_engine_t engine,
                              dnnl_memory_desc_t *layouts, bool bias,
                              dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t matmul;
    dnnl_status_t status =
        dnnl_matmul_desc_init(&matmul, &layouts[OPERAND_A], &layouts[OPERAND_B],
                              bias ? &layouts[OPERAND_BIAS] : NULL, &layouts[OPERAND_OUT]);
    if (status != dnnl_success) return status;
    return dnnl_primitive_desc_create(description, &matmul, attributes, engine, NULL);
}
#endif

static bool make_layouts(dnnl_memory_desc_t layouts[], const struct onednn_shape *s) {
    const dnnl_dims_t a = {s->m, s->k}, b = {s->k, s->n}, out = {s->m, s->n}, bias = {1, s->n};
    const dnnl_dims_t a_strides = {s->transpose_a ? 1 : s->k, s->transpose_a ? s->m : 1};
    const dnnl_dims_t b_strides = {s->transpose_b ? 1 : s->n, s->transpose_b ? s->k : 1};
    const dnnl_dims_t out_strides = {s->n, 1};
    return layout_make(&layouts[OPERAND_A], a, s->in, a_strides) &&
           layout_make(&layouts[OPERAND_B], b, s->in, b_strides) &&
           layout_make(&layouts[OPERAND_OUT], out, s->out, out_strides) &&
           (s->bias < 0 || layout_make(&layouts[OPERAND_BIAS], bias, s->bias, out_strides));
}

/* Scratch memory is ours, so that the memory plan knows it. */
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

/* The library has a plain loop for what no real kernel covers; widening to fp32 is faster. */
static bool is_reference(dnnl_primitive_desc_t description) {
    const char *name = "";
    dnnl_primitive_desc_query(description, dnnl_query_impl_info_str, 0, (void *)&name);
    return strstr(name, "ref") != NULL;
}

static bool build(struct onednn *library, struct onednn_product *product,
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

struct onednn_product *onednn_prepare(struct onednn *library, const struct onednn_shape *shape) {
    dnnl_memory_desc_t layouts[OPERAND_SCRATCH];
    memset(layouts, 0, sizeof layouts);
    struct onednn_product *product = calloc(1, sizeof *product);
    dnnl_primitive_attr_t attributes = make_attributes(shape->accumulate);
    dnnl_primitive_desc_t description = NULL;
    bool bias = shape->bias >= 0;
    bool good =
        product && attributes && make_layouts(layouts, shape) &&
        describe(&description, library->engine, layouts, bias, attributes) == dnnl_success &&
        !(shape->in != DTYPE_F32 && is_reference(description)) &&
        build(library, product, description, layouts, bias);
    if (description) dnnl_primitive_desc_destroy(description);
    if (attributes) dnnl_primitive_attr_destroy(attributes);
    for (int i = OPERAND_A; i <= OPERAND_BIAS; i++) layout_drop(&layouts[i]);
    if (good) return product;
    onednn_discard(product);
    return NULL;
}

void onednn_discard(struct onednn_product *product) {
    if (!product) return;
    if (product->primitive) dnnl_primitive_destroy(product->primitive);
    for (int i = 0; i < OPERANDS; i++)
        if (product->memory[i]) dnnl_memory_destroy(product->memory[i]);
    free(product);
}

size_t onednn_scratch_bytes(const struct onednn_product *product) {
    return product->scratch_bytes;
}

bool onednn_run(struct onednn *library, const struct onednn_product *product, void *out,
                const void *a, const void *b, const void *bias, void *scratch) {
    void *const places[OPERANDS] = {(void *)a, (void *)b, out, (void *)bias, scratch};
    static const int names[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS,
                                        DNNL_ARG_SCRATCHPAD};
    dnnl_exec_arg_t arguments[OPERANDS];
    int count = 0;
    for (int i = 0; i < OPERANDS; i++) {
        if (!product->memory[i]) continue;
        if (dnnl_memory_set_data_handle(product->memory[i], places[i]) != dnnl_success)
            return false;
        arguments[count++] = (dnnl_exec_arg_t){names[i], product->memory[i]};
    }
    return dnnl_primitive_execute(product->primitive, library->stream, count, arguments) ==
               dnnl_success &&
           dnnl_stream_wait(library->stream) == dnnl_success;
}
