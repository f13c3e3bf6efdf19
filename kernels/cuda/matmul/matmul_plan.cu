#include "kernels/cuda/matmul/matmul_plan.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/cuda/matmul/matmul_codes.h"
#include "kernels/cuda/matmul/matmul_trial.h"
#include "kernels/cuda/plain_c.h"
#include "kernels/cuda/storage.h"

/* ---- forms */

bool cuda_matmul_scales_afterwards(const struct matmul_args *args, bool as_codes) {
    return matmul_scales(args) && (!as_codes || cuda_scales_vectors(args));
}

/* Returns the dtype in which the library reads an operand. */
static enum dtype read_as(const struct matmul_args *args, const struct tensor *operand,
                          bool as_codes) {
    if (dtype_is_quantized(operand->dtype)) return as_codes ? operand->dtype : DTYPE_BF16;
    return args->a->dtype == args->b->dtype ? operand->dtype : DTYPE_F32;
}

/* True if the library stores the sum itself, except for a bias. */
static bool is_direct(const struct matmul_args *args, bool as_codes) {
    enum dtype to = matmul_sum(args)->dtype;
    if (cuda_matmul_scales_afterwards(args, as_codes)) return to == DTYPE_F32 && !args->accumulate;
    return as_codes || to == DTYPE_F32 || to == read_as(args, args->a, as_codes);
}

/* Returns the operations that the library may fuse. With codes it is only a bias of the output's
 * 16-bit dtype: for fp32 outputs the library supports a bf16 bias only, and for GELU it needs an
 * output of codes. */
static unsigned fusible(const struct cuda_products *products, const struct matmul_args *args,
                        bool as_codes) {
    enum dtype to = matmul_sum(args)->dtype;
    const struct tensor *other = args->pre_activation;
    bool packed = tensor_columns(args->out) % PACK == 0;
    bool gelu = other && products->fuses && packed && other->dtype == args->out->dtype;
    if (other && other->dtype == DTYPE_F32)
        gelu = false; /* the accuracy of its tanh is not documented */
    unsigned fused = 0;
    if (!is_direct(args, as_codes) || cuda_matmul_scales_afterwards(args, as_codes)) return 0;
    if (as_codes) return args->bias && args->bias->dtype == to && to != DTYPE_F32 ? FUSE_BIAS : 0;
    if (args->bias && (args->bias->dtype == to || to == DTYPE_F32)) fused |= FUSE_BIAS;
    if (args->epilogue == MATMUL_GELU && gelu && (fused || !args->bias)) fused |= FUSE_GELU;
    if (args->epilogue == MATMUL_DGELU && gelu && !args->bias) fused |= FUSE_DGELU;
    return fused;
}

/* Returns the next form to try. The bias is dropped last, since its separate pass costs the
 * most. */
static unsigned fuse_less(unsigned fused) {
    if (fused & ~FUSE_BIAS) return fused & FUSE_BIAS;
    return 0;
}

static int32_t epilogue_of(unsigned fused) {
    if (fused & FUSE_GELU) return fused & FUSE_BIAS ? EPILOGUE_GELU_BIAS : EPILOGUE_GELU;
    if (fused & FUSE_DGELU) return EPILOGUE_DGELU;
    return fused & FUSE_BIAS ? EPILOGUE_BIAS : EPILOGUE_NONE;
}

static void check(const struct matmul_args *args, const struct product_key *key) {
    assert(key->k == (args->transpose_b ? tensor_columns(args->b) : tensor_rows(args->b)));
    assert(tensor_rows(args->out) == key->m && tensor_columns(args->out) == key->n);
    matmul_check_epilogue(args);
    assert(matmul_scales_sums(args) && !args->a_blocks == !args->b_blocks);
    assert(matmul_scales(args) || args->a_blocks || !dtype_is_quantized(args->a->dtype));
    assert(!(args->a->dtype == DTYPE_E5M2 && args->b->dtype == DTYPE_E5M2));
}

/* The dtype of the output and accumulate are those of the library's result, see set_product. */
static struct product_key key_of(const struct cuda_products *products,
                                 const struct matmul_args *args, bool as_codes) {
    struct product_key key = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    key.m = args->transpose_a ? tensor_columns(args->a) : tensor_rows(args->a);
    key.k = args->transpose_a ? tensor_rows(args->a) : tensor_columns(args->a);
    key.n = args->transpose_b ? tensor_rows(args->b) : tensor_columns(args->b);
    key.a_in = (int16_t)read_as(args, args->a, as_codes);
    key.b_in = (int16_t)read_as(args, args->b, as_codes);
    key.transpose_a = !as_codes && args->transpose_a;
    key.transpose_b = as_codes || args->transpose_b;
    key.tf32 = products->tf32 && key.a_in == DTYPE_F32;
    key.fast = as_codes && args->fast_accumulation && !args->a_blocks;
    const struct codes_product codes = cuda_codes_product(products, args);
    if (as_codes) key.a_scale = (int16_t)codes.a_scale, key.b_scale = (int16_t)codes.b_scale;
    check(args, &key);
    return key;
}

/* Returns the tensor itself if it has that dtype, else memory for its copy. */
static struct tensor take_copy(struct arena *arena, const struct tensor *tensor, enum dtype dtype) {
    struct tensor copy = *tensor;
    if (tensor->dtype == dtype) return copy;
    copy.dtype = dtype;
    copy.data = arena_take(arena, tensor_bytes(&copy));
    return copy;
}

/* The same for an operand that may have to be transposed. */
static struct tensor take_operand(struct arena *arena, const struct tensor *tensor,
                                  enum dtype dtype, bool transpose) {
    if (!transpose) return take_copy(arena, tensor, dtype);
    return arena_tensor(arena, dtype, tensor_columns(tensor), tensor_rows(tensor));
}

struct matmul_buffers cuda_matmul_assign(struct backend *be, const struct matmul_args *args,
                                         const struct matmul_plan *plan, void *memory) {
    struct arena arena = {(char *)memory, 0, memory ? plan->bytes : SIZE_MAX};
    const struct product_key *key = &plan->product.key;
    const struct tensor *sum = matmul_sum(args);
    struct matmul_buffers at = {};
    at.a = take_operand(&arena, args->a, (enum dtype)key->a_in,
                        (bool)key->transpose_a != args->transpose_a);
    at.b = take_operand(&arena, args->b, (enum dtype)key->b_in,
                        (bool)key->transpose_b != args->transpose_b);
    if (product_in_blocks(key)) {
        at.a_scale = arena_take(
            &arena, product_scale_bytes((enum product_scale)key->a_scale, key->m, key->k));
        at.b_scale = arena_take(
            &arena, product_scale_bytes((enum product_scale)key->b_scale, key->n, key->k));
        if (matmul_scales(args)) at.alpha = (float *)arena_take(&arena, 2 * sizeof(float));
    }
    at.result = *(plan->fused & FUSE_GELU ? args->out : sum);
    bool bias_later = args->bias && !(plan->fused & FUSE_BIAS);
    at.in_workspace = !is_direct(args, plan->as_codes) || (bias_later && sum->dtype != DTYPE_F32);
    if (at.in_workspace) {
        at.result.dtype = DTYPE_F32;
        at.result.data = arena_take(&arena, tensor_bytes(&at.result));
    }
    if (plan->fused & FUSE_BIAS) at.bias = take_copy(&arena, args->bias, sum->dtype);
    struct column_sums_args sums = {args->column_sums, args->out};
    if (args->column_sums) at.sums = arena_take(&arena, cuda_column_sums_scratch(be, &sums));
    at.library = arena.base ? arena.base + arena.used : NULL;
    at.bytes = arena.used;
    return at;
}

/* Sets the library's product of the plan's form. */
static void set_product(struct backend *be, const struct matmul_args *args,
                        struct matmul_plan *plan) {
    struct product_key *key = &plan->product.key;
    *key = key_of(cuda_state(be)->products, args, plan->as_codes);
    key->epilogue = epilogue_of(plan->fused);
    struct matmul_buffers at = cuda_matmul_assign(be, args, plan, NULL);
    key->out = (int16_t)at.result.dtype;
    key->accumulate = args->accumulate && !at.in_workspace;
    plan->bytes = at.bytes;
}

/* ---- planning */

/* Takes an algorithm of those that the library offers, with its source. Without memory for a trial
 * it is the library's first, untried. */
static enum matmul_source take_algorithm(struct backend *be, const struct matmul_args *args,
                                         struct matmul_plan *plan, size_t limit, matmul_run *run) {
    struct cuda_products *products = cuda_state(be)->products;
    cublasLtMatmulHeuristicResult_t offered[CUDA_TIMED_ALGORITHMS];
    struct matmul_trial trial;
    int wanted = products->algorithms ? CUDA_TIMED_ALGORITHMS
                 : plan->tried        ? CUDA_TRIED_ALGORITHMS
                                      : 1;
    int count = product_request(products, &plan->product, limit, offered, wanted);
    size_t most = 0;
    for (int i = 0; i < count; i++)
        if (offered[i].workspaceSize > most) most = offered[i].workspaceSize;
    if (count == 0) return MATMUL_IMPOSSIBLE;
    cuda_product_set_algorithm(&plan->product, &offered[0]);
    if (!plan->tried) { /* memory for any that a trial may choose */
        plan->product.workspace_bytes = most;
        return MATMUL_UNTIMED;
    }
    if (be->failure.text[0] || !cuda_trial_open(&trial, be, args, plan->bytes + most, run))
        return MATMUL_UNTIMED;
    plan->bytes += most; /* while it is tried */
    enum matmul_source source =
        cuda_trial_take_fastest(&trial, plan, &plan->product, offered, count);
    plan->bytes -= most;
    cuda_trial_close(&trial);
    return source;
}

/* Plans the matmul in one form. If it is impossible the reason is in products->refusal, which is
 * empty if autotune declined the form. */
static enum matmul_source plan_form(struct backend *be, const struct matmul_args *args,
                                    struct matmul_plan *plan, bool planning, matmul_run *run) {
    struct cuda_products *products = cuda_state(be)->products;
    memset(&plan->product, 0, sizeof plan->product);
    set_product(be, args, plan);
    size_t left = be->workspace_bytes > plan->bytes ? be->workspace_bytes - plan->bytes : 0;
    size_t limit = planning ? products->workspace_max : left;
    enum matmul_source source = MATMUL_IMPOSSIBLE;
    plan->tried = planning && !be->only_sizes;
    if (product_describe(products, &plan->product)) {
        enum recorded found = product_take_recorded(products, &plan->product, limit, plan->tried);
        if (found == RECORDED_ALGORITHM) source = MATMUL_RECORDED;
        else if (found == RECORDED_NONE) source = take_algorithm(be, args, plan, limit, run);
        else products->refusal[0] = 0;
    }
    if (source == MATMUL_IMPOSSIBLE) product_discard(products, &plan->product);
    else plan->bytes += plan->product.workspace_bytes;
    return source;
}

/* Compares a plan that fuses gelu with the next form and keeps the faster. With be->only_sizes,
 * plan->bytes is the larger need of the two forms. Without time or memory the fused form is kept.
 * Returns the source of the fused form's algorithm, timed only if the forms were compared too. */
static enum matmul_source compare_forms(struct backend *be, const struct matmul_args *args,
                                        struct matmul_plan *plan, enum matmul_source source,
                                        matmul_run *run) {
    struct cuda_products *products = cuda_state(be)->products;
    struct matmul_plan other = *plan;
    struct matmul_trial trial;
    bool slower = false, compared = false;
    other.fused = fuse_less(plan->fused);
    enum matmul_source of_other = plan_form(be, args, &other, true, run);
    if (of_other == MATMUL_IMPOSSIBLE) return source;
    if (plan->tried && of_other != MATMUL_RECORDED)
        product_record(products, &other.product, false, of_other == MATMUL_TIMED);
    size_t bytes = plan->bytes > other.bytes ? plan->bytes : other.bytes;
    if (!plan->tried) {
        plan->bytes = bytes;
    } else if (!be->failure.text[0] && algorithms_have_time(products->algorithms) &&
               cuda_trial_open(&trial, be, args, bytes, run)) {
        slower = !(cuda_trial_time(&trial, plan, MATMUL_WHOLE, INFINITY) <=
                   cuda_trial_time(&trial, &other, MATMUL_WHOLE, INFINITY));
        compared = true;
        cuda_trial_close(&trial);
    }
    if (slower) {
        product_record(products, &plan->product, true, true);
        product_discard(products, &plan->product);
        *plan = other;
    } else {
        product_discard(products, &other.product);
    }
    return compared ? source : MATMUL_UNTIMED;
}

/* ---- fallbacks: products that do not run as requested */

struct fallback {
    struct product_key requested;
    char why[PRODUCT_REFUSAL_MAX]; /* first refusal; "": runs as requested */
};

/* Begins with the product that the library should run. The missing tensor cores of an older GPU are
 * reported once for the device, not for each matmul. */
static struct fallback fallback_begin(const struct cuda_products *products,
                                      const struct matmul_args *args, unsigned fused,
                                      bool as_codes) {
    struct fallback fallback = {};
    const struct codes_product codes = cuda_codes_product(products, args);
    if (codes.possible && !as_codes) {
        fused = fusible(products, args, true);
        snprintf(fallback.why, sizeof fallback.why, "its sizes are not multiples of %d",
                 codes.unit);
        if (codes.k_unit > codes.unit)
            snprintf(fallback.why, sizeof fallback.why,
                     "its sizes are not multiples of %d, and the last of %d", codes.unit,
                     codes.k_unit);
    }
    fallback.requested = key_of(products, args, codes.possible);
    fallback.requested.epilogue = epilogue_of(fused);
    return fallback;
}

/* A form that autotune found slower has no refusal and does not count. */
static void fallback_because(struct fallback *fallback, const char *refusal) {
    if (!fallback->why[0]) snprintf(fallback->why, sizeof fallback->why, "%s", refusal);
}

static struct matmul_key call_of(const struct backend *be, const struct matmul_args *args) {
    const struct codes_product codes = cuda_codes_product(cuda_state(be)->products, args);
    const struct tensor *pre_activation = args->pre_activation;
    struct matmul_key key;
    memset(&key, 0, sizeof key);
    key.m = tensor_rows(args->out), key.n = tensor_columns(args->out);
    key.k = args->transpose_a ? tensor_rows(args->a) : tensor_columns(args->a);
    key.a = (int16_t)args->a->dtype, key.b = (int16_t)args->b->dtype;
    key.out = (int16_t)args->out->dtype;
    key.bias = args->bias ? (int16_t)args->bias->dtype : -1;
    key.pre_activation = pre_activation ? (int16_t)pre_activation->dtype : -1;
    key.a_scale = (int16_t)codes.a_scale, key.b_scale = (int16_t)codes.b_scale;
    key.transpose_a = args->transpose_a, key.transpose_b = args->transpose_b;
    key.accumulate = args->accumulate, key.epilogue = (int16_t)args->epilogue;
    key.fast = args->fast_accumulation;
    key.in_blocks = (int16_t)(args->a_blocks ? codes.k_unit : 0);
    key.column_sums = args->column_sums != NULL, key.scales = matmul_scales(args);
    key.vectors = matmul_scales(args) && cuda_scales_vectors(args);
    return key;
}

/* Plans the form that fuses most, or with autotune the fastest. */
static enum matmul_source make_plan(struct backend *be, const struct matmul_args *args,
                                    struct matmul_plan *plan, bool planning, matmul_run *run) {
    struct cuda_products *products = cuda_state(be)->products;
    enum matmul_source source;
    plan->as_codes = cuda_codes_product(products, args).suits;
    plan->fused = fusible(products, args, plan->as_codes);
    struct fallback fallback = fallback_begin(products, args, plan->fused, plan->as_codes);
    while (!(source = plan_form(be, args, plan, planning, run))) {
        fallback_because(&fallback, products->refusal);
        if (!plan->fused && !plan->as_codes) return MATMUL_IMPOSSIBLE;
        if (plan->fused) {
            plan->fused = fuse_less(plan->fused);
        } else {
            plan->as_codes = false;
            plan->fused = fusible(products, args, false);
        }
    }
    if (products->algorithms && planning && source != MATMUL_RECORDED) {
        unsigned fused = plan->fused;
        if (fused & ~FUSE_BIAS) source = compare_forms(be, args, plan, source, run);
        if (plan->tried && plan->fused == fused)
            product_record(products, &plan->product, false, source == MATMUL_TIMED);
    }
    if (plan->tried && fallback.why[0])
        product_note_fallback(products, &plan->product.key, &fallback.requested, fallback.why);
    return source;
}

static struct matmul_plan *find_plan(struct cuda_products *products,
                                     const struct matmul_key *call) {
    for (ptrdiff_t i = 0; i < arrlen(products->plans); i++)
        if (!memcmp(&products->plans[i].call, call, sizeof *call)) return &products->plans[i];
    return NULL;
}

void cuda_matmul_discard_plans(struct cuda_products *products) {
    for (ptrdiff_t i = 0; i < arrlen(products->plans); i++)
        product_discard(products, &products->plans[i].product);
    arrfree(products->plans);
}

const struct cuda_product *cuda_matmul_planned(const struct cuda_products *products, int index) {
    return index < arrlen(products->plans) ? &products->plans[index].product : NULL;
}

const struct matmul_plan *cuda_matmul_plan(struct backend *be, const struct matmul_args *args,
                                           bool planning, matmul_run *run) {
    struct cuda_products *products = cuda_state(be)->products;
    const struct matmul_key call = call_of(be, args);
    struct matmul_plan plan = {call, 0, false, false, {}, 0}, *known = find_plan(products, &call);
    const struct product_key *key = &plan.product.key;
    bool possible = true;
    if (!known || (planning && !be->only_sizes && !known->tried)) {
        possible = make_plan(be, args, &plan, planning, run) != MATMUL_IMPOSSIBLE;
        if (possible && known) {
            product_discard(products, &known->product);
            *known = plan;
        } else if (possible) {
            arrput(products->plans, plan);
            known = &arrlast(products->plans);
        }
    }
    if (possible && (planning || known->bytes <= be->workspace_bytes)) return known;
    if (possible) key = &known->product.key;
    if (!be->failure.text[0])
        snprintf(be->failure.text, sizeof be->failure.text,
                 "CUDA: a matrix product of %lld x %lld x %lld, %s to %s: %s", (long long)key->m,
                 (long long)key->n, (long long)key->k, dtype_name(args->a->dtype),
                 dtype_name((enum dtype)key->out),
                 possible ? "it was not planned and the workspace is too small"
                          : products->refusal);
    return NULL;
}
