/* Matrix products: cuBLASLt with the epilogues that it can fuse, and our own passes for the rest.
 *
 * The library multiplies operands of one dtype, and stores that dtype or fp32. Its bias, and the
 * input of a fused GELU, have the dtype of the output. A recipe lists the library's product, our
 * passes, and all buffers. The library does not support:
 *
 *     operands of two dtypes           both are copied to fp32 first, which is exact
 *     codes that are not [M, K] and    they are transposed first
 *     [N, K] in memory
 *     codes on GPUs that do not        both are copied to bf16 first, which is exact
 *     multiply them, or of odd sizes
 *     scales of blocks in our order    they are arranged first (matmul_blocks.h)
 *     scales of rows, columns or bf16  the product is fp32; store_kernel multiplies by the scales
 *     a bias of a wider dtype than     the product is fp32, in the workspace; store_kernel adds
 *     out, or fp32 to 16 bit           the bias and rounds, once
 *     gelu                             a pass from pre_activation, after the product
 *     gelu'                            a pass in place, on the product rounded to out, with its
 *                                      column sums
 *     column sums after a fused gelu'  a separate pass
 *
 * If the library has no algorithm for a fused form, a form with less fused into it is tried. */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "kernels/cuda/matmul_blocks.h"
#include "kernels/cuda/matmul_codes.h"
#include "kernels/cuda/matmul_store.h"
#include "kernels/cuda/plain_c.h"
#include "kernels/cuda/products.h"
#include "kernels/cuda/storage.h"

/* ---- recipes */

enum { FUSE_BIAS = 1, FUSE_GELU = 2, FUSE_DGELU = 4 };

struct recipe {
    unsigned fused;
    bool as_codes; /* the library multiplies codes */
    const struct cuda_product *product;
    struct product_key key;
    struct tensor a, b, bias; /* operands of the library: args' own, or copies in the workspace */
    struct tensor result;     /* output of the library: args' own, or fp32 in the workspace */
    bool in_workspace;        /* the output is in the workspace */
    void *a_scale, *b_scale;  /* scales of blocks in the library's layout */
    float *alpha;  /* [2] scale of the product, if a and b in blocks have tensor scales */
    void *sums;    /* scratch for column sums */
    void *scratch; /* workspace of the library */
    size_t bytes;  /* size of the workspace */
};

/* True if store_kernel has to apply the scales. */
static bool scales_afterwards(const struct matmul_args *args, bool as_codes) {
    return matmul_scales(args) && (!as_codes || cuda_scales_vectors(args));
}

static struct sum_scales scales_of(const struct matmul_args *args) {
    return {(const float *)args->a_scales->data, (const float *)args->b_scales->data,
            tensor_count(args->a_scales) > 1, tensor_count(args->b_scales) > 1};
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
    if (scales_afterwards(args, as_codes)) return to == DTYPE_F32 && !args->accumulate;
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
    if (!is_direct(args, as_codes) || scales_afterwards(args, as_codes)) return 0;
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

static bool in_blocks(const struct recipe *r) {
    return r->key.a_scale > PRODUCT_TENSOR;
}

/* Assigns the buffers in memory. Without memory, only dtypes and bytes are valid. */
static void assign_memory(struct backend *be, const struct matmul_args *args, struct recipe *r,
                          void *memory) {
    struct arena arena = {(char *)memory, 0, r->bytes};
    const struct tensor *sum = matmul_sum(args);
    r->a = take_operand(&arena, args->a, (enum dtype)r->key.a_in,
                        (bool)r->key.transpose_a != args->transpose_a);
    r->b = take_operand(&arena, args->b, (enum dtype)r->key.b_in,
                        (bool)r->key.transpose_b != args->transpose_b);
    if (in_blocks(r)) {
        const struct product_key *key = &r->key;
        r->a_scale = arena_take(
            &arena, product_scale_bytes((enum product_scale)key->a_scale, key->m, key->k));
        r->b_scale = arena_take(
            &arena, product_scale_bytes((enum product_scale)key->b_scale, key->n, key->k));
        if (matmul_scales(args)) r->alpha = (float *)arena_take(&arena, 2 * sizeof(float));
    }
    r->result = *(r->fused & FUSE_GELU ? args->out : sum);
    bool bias_later = args->bias && !(r->fused & FUSE_BIAS);
    r->in_workspace = !is_direct(args, r->as_codes) || (bias_later && sum->dtype != DTYPE_F32);
    if (r->in_workspace) {
        r->result.dtype = DTYPE_F32;
        r->result.data = arena_take(&arena, tensor_bytes(&r->result));
    }
    if (r->fused & FUSE_BIAS) r->bias = take_copy(&arena, args->bias, sum->dtype);
    struct column_sums_args sums = {args->column_sums, args->out};
    if (args->column_sums) r->sums = arena_take(&arena, cuda_column_sums_scratch(be, &sums));
    r->scratch = arena.base ? arena.base + arena.used : NULL;
    if (!memory) r->bytes = arena.used;
}

/* Returns a recipe without the library's product. */
static struct recipe lay_out(struct backend *be, const struct matmul_args *args, unsigned fused,
                             bool as_codes) {
    struct recipe r = {};
    r.fused = fused;
    r.as_codes = as_codes;
    r.key = key_of(cuda_state(be)->products, args, as_codes);
    r.key.epilogue = epilogue_of(fused);
    assign_memory(be, args, &r, NULL);
    r.key.out = (int16_t)r.result.dtype;
    r.key.accumulate = args->accumulate && !r.in_workspace;
    return r;
}

/* ---- running */

/* blocks: NULL but for codes in blocks. */
static void copy_in(struct backend *be, const struct tensor *copy, const struct tensor *from,
                    const struct matmul_blocks *blocks) {
    struct cast_args args = {copy, from, false};
    if (copy->data == from->data) return;
    if (!dtype_is_quantized(from->dtype)) {
        cuda_cast(be, &args);
    } else if (dtype_is_quantized(copy->dtype)) {
        cuda_transpose_codes(be, copy, from);
    } else if (blocks) {
        struct dequantize_blocks_args values = {copy, from, &blocks->scales, blocks->format};
        cuda_dequantize_blocks(be, &values);
    } else {
        cuda_widen_codes(be, copy, from);
    }
}

static void arrange_scales(struct backend *be, const struct matmul_args *args,
                           const struct recipe *r) {
    const struct product_key *key = &r->key;
    cuda_arrange_block_scales(be, r->a_scale, args->a_blocks, (enum product_scale)key->a_scale,
                              args->transpose_a, key->m, key->k);
    cuda_arrange_block_scales(be, r->b_scale, args->b_blocks, (enum product_scale)key->b_scale,
                              !args->transpose_b, key->n, key->k);
    if (r->alpha)
        cuda_multiply_tensor_scales(be, r->alpha, (const float *)args->a_scales->data,
                                    (const float *)args->b_scales->data, key->accumulate);
}

static bool multiply(struct backend *be, const struct matmul_args *args, const struct recipe *r) {
    const struct cuda_products *products = cuda_state(be)->products;
    const struct tensor *aux = args->pre_activation;
    struct product_memory memory = {};
    memory.out = r->result.data;
    memory.a = r->a.data, memory.b = r->b.data;
    memory.a_scale = r->a_scale, memory.b_scale = r->b_scale, memory.alpha = r->alpha;
    if (r->key.a_scale == PRODUCT_TENSOR) {
        memory.a_scale = args->a_scales->data;
        memory.b_scale = args->b_scales->data;
    }
    memory.vector = r->bias.data, memory.aux = aux ? aux->data : NULL;
    memory.workspace = r->scratch;
    cublasStatus_t status = product_run(products, r->product, &memory);
    if (status && !be->failure.text[0])
        snprintf(be->failure.text, sizeof be->failure.text,
                 "CUDA: cuBLASLt failed on a matrix product of %lld x %lld x %lld, %s to %s, "
                 "epilogue %s: %s (status %d)",
                 (long long)r->key.m, (long long)r->key.n, (long long)r->key.k,
                 dtype_name((enum dtype)r->key.a_in), dtype_name((enum dtype)r->key.out),
                 epilogue_names[r->key.epilogue], products->lt.GetStatusString(status),
                 (int)status);
    return !status;
}

/* Runs the operations that the library has not fused. */
static void finish(struct backend *be, const struct matmul_args *args, const struct recipe *r) {
    const struct tensor *sum = matmul_sum(args);
    const struct tensor *bias = r->fused & FUSE_BIAS ? NULL : args->bias;
    struct sum_scales scales = {};
    if (scales_afterwards(args, r->as_codes)) scales = scales_of(args);
    if (r->in_workspace || bias || scales.a)
        cuda_matmul_store(be, sum, (const float *)r->result.data, scales, bias,
                          args->accumulate && r->in_workspace);
    if (args->epilogue == MATMUL_GELU && !(r->fused & FUSE_GELU)) {
        struct gelu_forward_args gelu = {args->out, args->pre_activation, args->track_amax, NULL};
        cuda_gelu_forward(be, &gelu);
    }
    if (args->epilogue == MATMUL_DGELU && !(r->fused & FUSE_DGELU)) {
        struct gelu_backward_args gelu = {args->out,        args->out,         args->pre_activation,
                                          args->track_amax, args->column_sums, NULL};
        cuda_gelu_derivative(be, &gelu, r->sums);
    } else if (args->column_sums) {
        struct column_sums_args sums = {args->column_sums, args->out};
        cuda_sum_columns(be, &sums, r->sums);
    }
}

static void run_recipe(struct backend *be, const struct matmul_args *args, const struct recipe *r) {
    copy_in(be, &r->a, args->a, args->a_blocks);
    copy_in(be, &r->b, args->b, args->b_blocks);
    if (in_blocks(r)) arrange_scales(be, args, r);
    if (r->fused & FUSE_BIAS) copy_in(be, &r->bias, args->bias, NULL);
    if (multiply(be, args, r)) finish(be, args, r);
}

/* ---- finding */

/* Finds the recipe of this form; false if the library declines. */
static bool find_form(struct backend *be, const struct matmul_args *args, struct recipe *r,
                      unsigned fused, bool as_codes, bool planning) {
    *r = lay_out(be, args, fused, as_codes);
    size_t left = be->workspace_bytes > r->bytes ? be->workspace_bytes - r->bytes : 0;
    r->product = product_find(cuda_state(be)->products, &r->key,
                              planning ? cuda_state(be)->products->workspace_max : left,
                              planning && !be->only_sizes);
    return r->product != NULL;
}

/* ---- timing: the fused form against the next one */

struct timed_recipe {
    struct backend *be;
    const struct matmul_args *args;
    const struct recipe *r;
};

static bool run_timed(void *argument) {
    const struct timed_recipe *timed = (const struct timed_recipe *)argument;
    run_recipe(timed->be, timed->args, timed->r);
    return !timed->be->failure.text[0];
}

static float time_form(struct backend *be, const struct matmul_args *args, unsigned fused,
                       struct arena arena) {
    struct recipe r;
    if (!find_form(be, args, &r, fused, false, true)) return INFINITY;
    r.bytes += r.product->workspace_bytes;
    assign_memory(be, args, &r, arena_take(&arena, r.bytes));
    struct timed_recipe timed = {be, args, &r};
    float time = product_time(cuda_state(be)->products, run_timed, &timed);
    be->failure.text[0] = 0; /* failures of the trial only: there was none before */
    return time;
}

/* A copy of args whose tensors are in other memory, for timing. */
struct trial_args {
    struct matmul_args args;
    struct tensor tensors[6];
};

static void make_trial_args(struct trial_args *trial_args, const struct matmul_args *args,
                            struct arena *arena) {
    trial_args->args = *args;
    const struct tensor **of[] = {&trial_args->args.out,
                                  &trial_args->args.a,
                                  &trial_args->args.b,
                                  &trial_args->args.bias,
                                  &trial_args->args.pre_activation,
                                  &trial_args->args.column_sums};
    for (int i = 0; i < 6; i++) {
        if (!*of[i]) continue;
        trial_args->tensors[i] = **of[i];
        trial_args->tensors[i].data = arena_take(arena, tensor_bytes(&trial_args->tensors[i]));
        *of[i] = &trial_args->tensors[i];
    }
}

/* True if the fused form, which is possible, is faster than the next one. This is timed once; the
 * choice is then recorded. Without time or memory for the trial the fused form is kept. */
static bool keeps_fused(struct backend *be, const struct matmul_args *args,
                        const struct product_key *key, unsigned fused) {
    struct cuda_products *products = cuda_state(be)->products;
    size_t workspaces = 2 * products->workspace_max; /* the library's, and that of the recipes */
    struct trial_args trial_args;
    struct arena arena = {NULL, 0, SIZE_MAX};
    void *memory = NULL;
    bool kept = true, compared = false;
    if (product_was_compared(products, key)) return true;
    make_trial_args(&trial_args, args, &arena);
    struct recipe unfused = lay_out(be, args, fuse_less(fused), false);
    size_t bytes = arena.used + unfused.bytes + workspaces;
    if (product_has_time(products) && cudaMalloc(&memory, bytes) == cudaSuccess) {
        arena = (struct arena){(char *)memory, 0, bytes};
        make_trial_args(&trial_args, args, &arena);
        if (product_fill(products, memory, bytes)) {
            float fused_time = time_form(be, &trial_args.args, fused, arena);
            kept = fused_time <= time_form(be, &trial_args.args, fuse_less(fused), arena);
            compared = true;
            products->trials_ended = progress_clock();
        }
        cudaFree(memory);
    }
    cudaGetLastError(); /* clears the error of a failed allocation */
    if (!compared) product_mark_untimed(products, key);
    if (!kept) product_decline(products, key);
    return kept;
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

/* Finds the recipe that fuses most, or with autotune the fastest. Returns false with
 * be->failure.text set if there is none. */
static bool find_recipe(struct backend *be, const struct matmul_args *args, struct recipe *r,
                        bool planning) {
    struct cuda_products *products = cuda_state(be)->products;
    bool as_codes = cuda_codes_product(products, args).suits;
    bool compares = planning && !be->only_sizes && products->autotune && !be->failure.text[0];
    unsigned fused = fusible(products, args, as_codes);
    struct fallback fallback = fallback_begin(products, args, fused, as_codes);
    for (;;) {
        bool found = find_form(be, args, r, fused, as_codes, planning);
        if (!found) fallback_because(&fallback, products->refusal);
        if (found && compares &&
            fused & ~FUSE_BIAS) /* found again, because the trial may have moved the product */
            found = keeps_fused(be, args, &r->key, fused) &&
                    find_form(be, args, r, fused, as_codes, planning);
        if (found || !(fused || as_codes)) break;
        if (fused) {
            fused = fuse_less(fused);
        } else {
            as_codes = false;
            fused = fusible(products, args, as_codes);
        }
    }
    if (r->product) r->bytes += r->product->workspace_bytes;
    if (r->product && planning && !be->only_sizes && fallback.why[0])
        product_note_fallback(products, &r->key, &fallback.requested, fallback.why);
    if (r->product && (planning || r->bytes <= be->workspace_bytes)) return true;
    if (!be->failure.text[0])
        snprintf(be->failure.text, sizeof be->failure.text,
                 "CUDA: a matrix product of %lld x %lld x %lld, %s to %s: %s", (long long)r->key.m,
                 (long long)r->key.n, (long long)r->key.k, dtype_name(args->a->dtype),
                 dtype_name((enum dtype)r->key.out),
                 r->product ? "it was not planned and the workspace is too small"
                            : cuda_state(be)->products->refusal);
    return false;
}

/* Sizes alone are those of the form that needs the most, since autotune may choose either. */
size_t cuda_matmul_scratch(struct backend *be, const struct matmul_args *args) {
    struct recipe r, other;
    if (!find_recipe(be, args, &r, true)) return 0;
    if (!be->only_sizes || !cuda_state(be)->products->autotune || !(r.fused & ~FUSE_BIAS) ||
        !find_form(be, args, &other, fuse_less(r.fused), false, true))
        return r.bytes;
    size_t bytes = other.bytes + other.product->workspace_bytes;
    return bytes > r.bytes ? bytes : r.bytes;
}

void cuda_matmul(struct backend *be, const struct matmul_args *args) {
    struct recipe r;
    if (!find_recipe(be, args, &r, false)) return;
    assign_memory(be, args, &r, backend_workspace(be, r.bytes));
    run_recipe(be, args, &r);
}
