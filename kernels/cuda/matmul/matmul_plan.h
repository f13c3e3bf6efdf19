/* Plans of matmuls.
 *
 * Each matmul is planned once, before step 0. A plan holds the operations that cuBLASLt fuses,
 * whether it multiplies codes, and the algorithm. If the library has no algorithm for a fused form,
 * a form with less fused into it is tried. */
#pragma once

#include "kernels/cuda/matmul/matmul_trial.h"

/* Identifies a planned matmul. Keys are compared with memcmp, so there is no padding. in_blocks is
 * the length along k that operands in blocks need, which decides whether codes are multiplied. */
struct matmul_key {
    int64_t m, n, k;
    int16_t a, b, out, bias, pre_activation; /* enum dtype; -1: none */
    int16_t a_scale, b_scale;                /* enum product_scale, with codes */
    int16_t transpose_a, transpose_b, accumulate, epilogue, fast, in_blocks, column_sums, scales,
        vectors;
};

struct matmul_plan {
    struct matmul_key call;
    unsigned fused; /* FUSE_BIAS, ... */
    bool as_codes;  /* the library multiplies codes */
    bool tried;     /* planned for a run, with a trial if memory allowed; false for plans of sizes
                     * and for matmuls first seen in a step */
    struct cuda_product product;
    size_t bytes; /* size of the workspace, with the library's */
};

/* Returns the plan, made at the first call, with trials by `run`; it is valid until the next call.
 * A plan for training replaces one that was not tried. Returns NULL with be->failure.text set if
 * there is none. */
const struct matmul_plan *cuda_matmul_plan(struct backend *be, const struct matmul_args *args,
                                           bool planning, matmul_run *run);

/* Frees all plans: matmuls are planned again. */
void cuda_matmul_discard_plans(struct cuda_products *products);

/* Returns the library's part of the index-th plan, or NULL if there are fewer; for tests. */
const struct cuda_product *cuda_matmul_planned(const struct cuda_products *products, int index);

/* ---- forms */

/* Operations that the library fuses. */
enum { FUSE_BIAS = 1, FUSE_GELU = 2, FUSE_DGELU = 4 };

/* Operands and result of the library, and its workspace. */
struct matmul_buffers {
    struct tensor a, b, bias; /* args' own, or copies in the workspace */
    struct tensor result;     /* args' own, or fp32 in the workspace */
    bool in_workspace;        /* the result is in the workspace */
    void *a_scale, *b_scale;  /* scales of blocks in the library's layout */
    float *alpha;  /* [2] scale of the product, if a and b in blocks have tensor scales */
    void *sums;    /* scratch for column sums */
    void *library; /* workspace of the library */
    size_t bytes;  /* size without the library's */
};

/* Assigns the buffers of a plan in memory. Without memory, only dtypes and bytes are valid. */
struct matmul_buffers cuda_matmul_assign(struct backend *be, const struct matmul_args *args,
                                         const struct matmul_plan *plan, void *memory);

/* True if store_kernel has to apply the scales. */
bool cuda_matmul_scales_afterwards(const struct matmul_args *args, bool as_codes);
