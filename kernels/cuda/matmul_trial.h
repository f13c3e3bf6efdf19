/* Trials: a matmul on memory of its own, run before step 0. If the library offers an algorithm and
 * then refuses it, another algorithm, or a form with less fused into it, can still be used. With
 * autotune every algorithm is timed, until the time for trials is over. */
#pragma once

#include "kernels/cuda/products.h"

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
    unsigned fused;
    bool as_codes; /* the library multiplies codes */
    bool tried;    /* planned for a run, with a trial if memory allowed; false for plans of sizes
                    * and for matmuls first seen in a step */
    struct cuda_product product;
    size_t bytes; /* size of the workspace, with the library's */
};

/* The library's part of a matmul, or all of it, with the passes before and after. */
enum matmul_part { MATMUL_WHOLE, MATMUL_LIBRARY };

/* Queues a matmul (matmul.cu). workspace: plan->bytes. Errors of our own passes are in
 * be->failure. */
cublasStatus_t cuda_matmul_run(struct backend *be, const struct matmul_args *args,
                               const struct matmul_plan *plan, void *workspace,
                               enum matmul_part part);

static inline void cuda_plan_set_algorithm(struct matmul_plan *plan,
                                           const cublasLtMatmulHeuristicResult_t *algorithm) {
    plan->product.algorithm = algorithm->algo;
    plan->product.workspace_bytes = algorithm->workspaceSize;
}

enum { CUDA_TRIED_ALGORITHMS = 8 };

struct matmul_trial {
    struct backend *be;
    struct matmul_args args;
    struct tensor tensors[8];
    struct matmul_blocks blocks[2];
    void *memory, *workspace;
};

/* Allocates the operands of a trial, with numbers of ordinary size. Returns false if there is no
 * memory for them, in which case plans are used untried, or with be->failure set. */
bool cuda_trial_open(struct matmul_trial *trial, struct backend *be, const struct matmul_args *args,
                     size_t workspace_bytes);

/* Frees the memory, and clears errors of the trial: there was none before. */
void cuda_trial_close(struct matmul_trial *trial);

/* Returns the median time of some runs, in milliseconds; infinite if one fails. The runs are queued
 * one behind the other, so that the host's launches are hidden as in a step. Algorithms differ in
 * the library's part, forms in the whole matmul. */
float cuda_trial_time(struct matmul_trial *trial, const struct matmul_plan *plan,
                      enum matmul_part part);

/* Takes the first algorithm that works, or with autotune the fastest. *timed is false if time did
 * not suffice for all. Returns false if none works, with the reason in products->refusal. */
bool cuda_trial_take_fastest(struct matmul_trial *trial, struct matmul_plan *plan,
                             const cublasLtMatmulHeuristicResult_t *offered, int count,
                             bool *timed);
