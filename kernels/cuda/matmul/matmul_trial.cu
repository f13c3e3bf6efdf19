#include "kernels/cuda/matmul/matmul_trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/plain_c.h"
#include "kernels/cuda/storage.h"

enum {
    WARM_UPS = 2,
    TIMED_RUNS = 5,
    PATTERN_BYTES = 1 << 16,
    PATIENCE = 12 /* algorithms in the library's order since the fastest, which end a search */
};
static const float HOPELESS = 1.5f; /* times the best: runs differ by less */

static size_t assign_trial(struct matmul_trial *trial, const struct matmul_args *args,
                           size_t workspace_bytes) {
    struct arena arena = {(char *)trial->memory, 0, SIZE_MAX};
    struct matmul_args *own = &trial->args;
    const struct tensor **of[] = {&own->out,
                                  &own->a,
                                  &own->b,
                                  &own->bias,
                                  &own->column_sums,
                                  &own->a_scales,
                                  &own->pre_activation,
                                  &own->b_scales};
    const struct matmul_blocks **blocks[] = {&own->a_blocks, &own->b_blocks};
    *own = *args;
    own->track_amax = NULL;
    for (int i = 0; i < 8; i++) {
        if (!*of[i]) continue;
        trial->tensors[i] = **of[i];
        trial->tensors[i].data = arena_take(&arena, tensor_bytes(&trial->tensors[i]));
        *of[i] = &trial->tensors[i];
    }
    for (int i = 0; i < 2; i++) {
        if (!*blocks[i]) continue;
        trial->blocks[i] = **blocks[i];
        trial->blocks[i].scales.data = arena_take(&arena, tensor_bytes(&trial->blocks[i].scales));
        *blocks[i] = &trial->blocks[i];
    }
    trial->workspace = arena_take(&arena, workspace_bytes);
    return arena.used;
}

/* Fills memory with numbers of both signs and many magnitudes around 1, since the clocks of a GPU
 * depend on the bits that it switches. They are finite in every dtype of operands: 16 bits of
 * 0x3c00 with some of them at random are 2^-7 to 2 in bf16, 1 to 2 in fp16, and the bytes are
 * finite in E4M3 and E5M2. */
static bool fill(cudaStream_t stream, void *to, size_t bytes) {
    static uint16_t pattern[PATTERN_BYTES / sizeof(uint16_t)];
    for (size_t i = 0; i < PATTERN_BYTES / sizeof *pattern; i++)
        pattern[i] = (uint16_t)(0x3c00 | (random_bits(12, 0, i) & 0x83fb));
    char *memory = (char *)to;
    size_t first = bytes < sizeof pattern ? bytes : sizeof pattern;
    bool ok = !cudaMemcpyAsync(memory, pattern, first, cudaMemcpyHostToDevice, stream);
    for (size_t done = first; done < bytes && ok; done *= 2)
        ok = !cudaMemcpyAsync(memory + done, memory, done < bytes - done ? done : bytes - done,
                              cudaMemcpyDeviceToDevice, stream);
    return ok;
}

/* Sets scales in E8M0 to 1: products of two exponents of the pattern would overflow. */
static bool fill_exponents(struct matmul_trial *trial) {
    cudaStream_t stream = cuda_state(trial->be)->compute;
    for (int i = 0; i < 2; i++) {
        const struct tensor *scales = &trial->blocks[i].scales;
        if (scales->data && scales->dtype == DTYPE_E8M0 &&
            cudaMemsetAsync(scales->data, 0x7f, tensor_bytes(scales), stream))
            return false;
    }
    return true;
}

bool cuda_trial_open(struct matmul_trial *trial, struct backend *be, const struct matmul_args *args,
                     size_t workspace_bytes, matmul_run *run) {
    memset(trial, 0, sizeof *trial);
    trial->be = be;
    trial->run = run;
    size_t bytes = assign_trial(trial, args, workspace_bytes);
    cudaError_t error = cudaMalloc(&trial->memory, bytes);
    bool ok = error == cudaSuccess;
    if (ok) assign_trial(trial, args, workspace_bytes);
    if (ok && fill(cuda_state(be)->compute, trial->memory, bytes) && fill_exponents(trial))
        return true;
    if (ok) cudaFree(trial->memory);
    else if (error != cudaErrorMemoryAllocation)
        snprintf(be->failure.text, sizeof be->failure.text, "CUDA: a matmul cannot be tried: %s",
                 cudaGetErrorString(error));
    cudaGetLastError(); /* clears the error */
    return false;
}

void cuda_trial_close(struct matmul_trial *trial) {
    cudaFree(trial->memory);
    cudaGetLastError();
    trial->be->failure.text[0] = 0;
}

static void record_refusal(struct backend *be, const char *message, int status) {
    struct cuda_products *products = cuda_state(be)->products;
    snprintf(products->refusal, sizeof products->refusal,
             "cuBLASLt offers an algorithm and then fails: %.80s (status %d)", message, status);
}

/* Queues the matmul, or the library's part of one that has run before. Returns false, with the
 * reason in products->refusal, if that fails. */
static bool try_plan(struct matmul_trial *trial, const struct matmul_plan *plan,
                     enum matmul_part part) {
    struct backend *be = trial->be;
    cublasStatus_t status = trial->run(be, &trial->args, plan, trial->workspace, part);
    if (status)
        record_refusal(be, cuda_state(be)->products->lt.GetStatusString(status), (int)status);
    else if (be->failure.text[0]) record_refusal(be, be->failure.text, 0);
    return !status && !be->failure.text[0];
}

/* Runs the whole matmul and waits for its completion. Returns false as try_plan does. */
static bool complete_plan(struct matmul_trial *trial, const struct matmul_plan *plan) {
    if (!try_plan(trial, plan, MATMUL_WHOLE)) return false;
    cudaError_t error = cudaStreamSynchronize(cuda_state(trial->be)->compute);
    if (error != cudaSuccess) record_refusal(trial->be, cudaGetErrorString(error), (int)error);
    return error == cudaSuccess;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float cuda_trial_time(struct matmul_trial *trial, const struct matmul_plan *plan,
                      enum matmul_part part, float best) {
    cudaStream_t stream = cuda_state(trial->be)->compute;
    cudaEvent_t ends[TIMED_RUNS + 1] = {}; /* of the last warm-up, and of each run */
    float times[TIMED_RUNS];
    bool ok = true;
    for (int i = 0; i <= TIMED_RUNS && ok; i++) ok = !cudaEventCreate(&ends[i]);
    for (int i = 1 - WARM_UPS; i <= TIMED_RUNS && ok; i++) {
        ok = try_plan(trial, plan, part) && (i < 0 || !cudaEventRecord(ends[i], stream));
        if (i == 1 && ok && best < INFINITY)
            ok = !cudaEventSynchronize(ends[1]) &&
                 !cudaEventElapsedTime(&times[0], ends[0], ends[1]) && times[0] < HOPELESS * best;
    }
    ok = ok && !cudaEventSynchronize(ends[TIMED_RUNS]);
    for (int i = 0; i < TIMED_RUNS && ok; i++)
        ok = !cudaEventElapsedTime(&times[i], ends[i], ends[i + 1]);
    for (int i = 0; i <= TIMED_RUNS; i++)
        if (ends[i]) cudaEventDestroy(ends[i]);
    algorithms_trial_ended(cuda_state(trial->be)->products->algorithms);
    if (!ok) trial->be->failure.text[0] = 0;
    if (!ok) return INFINITY;
    qsort(times, TIMED_RUNS, sizeof *times, by_value);
    return times[TIMED_RUNS / 2];
}

enum matmul_source cuda_trial_take_fastest(struct matmul_trial *trial,
                                           const struct matmul_plan *plan,
                                           struct cuda_product *product,
                                           const cublasLtMatmulHeuristicResult_t *offered,
                                           int count) {
    struct algorithms *algorithms = cuda_state(trial->be)->products->algorithms;
    bool tune = algorithms && count > 1, timed = true;
    int best = -1;
    float least = INFINITY;
    for (int i = 0; i < count; i++) {
        cuda_product_set_algorithm(product, &offered[i]);
        if (tune && best >= 0 && i - best > PATIENCE) break;
        if (tune && !algorithms_have_time(algorithms)) timed = false;
        if (best >= 0 && !timed) break;
        if (!complete_plan(trial, plan)) {
            trial->be->failure.text[0] = 0;
            continue;
        }
        if (!tune || !timed) return timed ? MATMUL_TIMED : MATMUL_UNTIMED;
        float time = cuda_trial_time(trial, plan, MATMUL_LIBRARY, least);
        if (best < 0 || time < least) least = time, best = i;
    }
    if (best < 0) return MATMUL_IMPOSSIBLE;
    cuda_product_set_algorithm(product, &offered[best]);
    return timed ? MATMUL_TIMED : MATMUL_UNTIMED;
}
