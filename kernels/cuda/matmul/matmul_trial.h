/* Trials: a matmul on memory of its own, run before step 0. If the library offers an algorithm and
 * then refuses it, another algorithm, or a form with less fused into it, can still be used. With
 * autotune every algorithm is timed, until the time for trials is over. */
#pragma once

#include "kernels/cuda/matmul/products.h"

/* The library's part of a matmul, or all of it, with the passes before and after. */
enum matmul_part { MATMUL_WHOLE, MATMUL_LIBRARY };

/* Queues a matmul, or a part of one that has run before. workspace: of the plan's size. Errors of
 * our own passes are in be->failure. */
typedef cublasStatus_t matmul_run(struct backend *be, const struct matmul_args *args,
                                  const struct matmul_plan *plan, void *workspace,
                                  enum matmul_part part);

/* Source of a plan's algorithm; MATMUL_IMPOSSIBLE is 0. Untimed algorithms were not all timed, or
 * the form was not compared with its alternative. */
enum matmul_source { MATMUL_IMPOSSIBLE, MATMUL_RECORDED, MATMUL_UNTIMED, MATMUL_TIMED };

static inline void cuda_product_set_algorithm(struct cuda_product *product,
                                              const cublasLtMatmulHeuristicResult_t *algorithm) {
    product->algorithm = algorithm->algo;
    product->workspace_bytes = algorithm->workspaceSize;
}

/* Number of algorithms that the library is asked for: to find one that works, and with autotune to
 * find the fastest, which its ranking may have far behind. */
enum { CUDA_TRIED_ALGORITHMS = 8, CUDA_TIMED_ALGORITHMS = 32 };

struct matmul_trial {
    struct backend *be;
    matmul_run *run;
    struct matmul_args args;
    struct tensor tensors[8];
    struct matmul_blocks blocks[2];
    void *memory, *workspace;
};

/* Allocates the operands of a trial, with numbers of ordinary size. Returns false if there is no
 * memory for them, in which case plans are used untried, or with be->failure set. */
bool cuda_trial_open(struct matmul_trial *trial, struct backend *be, const struct matmul_args *args,
                     size_t workspace_bytes, matmul_run *run);

/* Frees the memory, and clears errors of the trial: there was none before. */
void cuda_trial_close(struct matmul_trial *trial);

/* Returns the median time of some runs, in milliseconds; infinite if one fails, or if the first one
 * takes far longer than `best`. The runs are queued one behind the other, so that the host's
 * launches are hidden as in a step. Algorithms differ in the library's part, forms in the whole
 * matmul. */
float cuda_trial_time(struct matmul_trial *trial, const struct matmul_plan *plan,
                      enum matmul_part part, float best);

/* Sets the first algorithm of the plan's product that works, or with autotune the fastest; untimed
 * if time did not suffice for all. Impossible if none works, with the reason in products->refusal.
 */
enum matmul_source cuda_trial_take_fastest(struct matmul_trial *trial,
                                           const struct matmul_plan *plan,
                                           struct cuda_product *product,
                                           const cublasLtMatmulHeuristicResult_t *offered,
                                           int count);
