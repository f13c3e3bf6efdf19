/* Runs each product once before step 0, on separate memory. If the library offers an algorithm and
 * then refuses it, another algorithm, or a form with less fused into it, can still be used. With
 * autotune every algorithm is timed, until the time for trials is over. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/plain_c.h"
#include "kernels/cuda/products.h"

enum { WARM_UPS = 2, TIMED_RUNS = 5 };
static const size_t PATTERN_BYTES = 1 << 16;

struct trial {
    struct cuda_products *products;
    const struct cuda_product *product;
    struct product_memory operands;
};

static size_t assign_operands(struct product_memory *operands, const struct product_key *key,
                              size_t workspace_bytes, void *memory) {
    struct arena arena = {(char *)memory, 0, SIZE_MAX};
    size_t out = dtype_bytes((enum dtype)key->out);
    operands->a = arena_take(&arena, dtype_size((enum dtype)key->a_in, key->m * key->k));
    operands->b = arena_take(&arena, dtype_size((enum dtype)key->b_in, key->k * key->n));
    operands->a_scale =
        arena_take(&arena, product_scale_bytes((enum product_scale)key->a_scale, key->m, key->k));
    operands->b_scale =
        arena_take(&arena, product_scale_bytes((enum product_scale)key->b_scale, key->n, key->k));
    operands->alpha = (const float *)arena_take(&arena, 2 * sizeof(float));
    operands->out = arena_take(&arena, (size_t)(key->m * key->n) * out);
    operands->aux = arena_take(&arena, (size_t)(key->m * key->n) * out);
    operands->vector = arena_take(&arena, (size_t)key->n * out);
    operands->workspace = arena_take(&arena, workspace_bytes);
    return arena.used;
}

/* Numbers of both signs and many magnitudes around 1, since the clocks of a GPU depend on the bits
 * that it switches. They are finite in every dtype of operands: 16 bits of 0x3c00 with some of them
 * at random are 2^-7 to 2 in bf16, 1 to 2 in fp16, and the bytes are finite in E4M3 and E5M2. */
bool product_fill(const struct cuda_products *products, void *to, size_t bytes) {
    static uint16_t pattern[PATTERN_BYTES / sizeof(uint16_t)];
    for (size_t i = 0; i < PATTERN_BYTES / sizeof *pattern; i++)
        pattern[i] = (uint16_t)(0x3c00 | (random_bits(12, 0, i) & 0x83fb));
    char *memory = (char *)to;
    size_t first = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    bool ok = !cudaMemcpyAsync(memory, pattern, first, cudaMemcpyHostToDevice, products->stream);
    for (size_t done = first; done < bytes && ok; done *= 2)
        ok = !cudaMemcpyAsync(memory + done, memory, done < bytes - done ? done : bytes - done,
                              cudaMemcpyDeviceToDevice, products->stream);
    return ok;
}

/* Scales past the last block have to be 0. */
static bool clear_padding(const struct cuda_products *products, const void *scales, int16_t scale,
                          int64_t outer, int64_t k) {
    enum product_scale mode = (enum product_scale)scale;
    size_t bytes = product_scale_bytes(mode, outer, k);
    int64_t vector = mode == PRODUCT_VEC16 ? 16 : 32;
    bool tiled = mode == PRODUCT_VEC16 || mode == PRODUCT_VEC32;
    if (!tiled || bytes == (size_t)(outer * (k / vector))) return true;
    return !cudaMemsetAsync((void *)scales, 0, bytes, products->stream);
}

static bool fill_operands(const struct cuda_products *products, const struct product_memory *of,
                          const struct product_key *key, void *memory, size_t bytes) {
    return product_fill(products, memory, bytes) &&
           clear_padding(products, of->a_scale, key->a_scale, key->m, key->k) &&
           clear_padding(products, of->b_scale, key->b_scale, key->n, key->k);
}

static void record_refusal(struct cuda_products *products, const char *message, int status) {
    snprintf(products->refusal, sizeof products->refusal,
             "cuBLASLt offers an algorithm and then fails: %.80s (status %d)", message, status);
}

/* True if the library queues the product; otherwise records its error. */
static bool queues(void *argument) {
    const struct trial *trial = (const struct trial *)argument;
    struct cuda_products *products = trial->products;
    cublasStatus_t status = product_run(products, trial->product, &trial->operands);
    if (status) record_refusal(products, products->lt.GetStatusString(status), (int)status);
    return !status;
}

/* True if the product also completes. */
static bool completes(struct trial *trial) {
    if (!queues(trial)) return false;
    cudaError_t error = cudaStreamSynchronize(trial->products->stream);
    if (error != cudaSuccess)
        record_refusal(trial->products, cudaGetErrorString(error), (int)error);
    return error == cudaSuccess;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

float product_time(struct cuda_products *products, bool (*run)(void *argument), void *argument) {
    cudaEvent_t begin = NULL, end = NULL;
    float times[TIMED_RUNS], median = INFINITY;
    bool ok = !cudaEventCreate(&begin) && !cudaEventCreate(&end);
    for (int i = -WARM_UPS; i < TIMED_RUNS && ok; i++) {
        ok = !cudaEventRecord(begin, products->stream) && run(argument) &&
             !cudaEventRecord(end, products->stream) && !cudaEventSynchronize(end);
        if (ok && i >= 0) ok = !cudaEventElapsedTime(&times[i], begin, end);
    }
    if (ok) {
        qsort(times, TIMED_RUNS, sizeof *times, by_value);
        median = times[TIMED_RUNS / 2];
    }
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    return median;
}

bool product_has_time(struct cuda_products *products) {
    double now = progress_clock();
    if (products->trials_began == 0) products->trials_began = products->trials_ended = now;
    return now - products->trials_began < products->trial_limit;
}

static int choose(struct trial *trial, struct cuda_product *product,
                  const cublasLtMatmulHeuristicResult_t *algorithms, int count, bool *timed) {
    struct cuda_products *products = trial->products;
    bool tune = products->autotune && count > 1;
    int best = -1;
    float least = INFINITY;
    *timed = true;
    for (int i = 0; i < count; i++) {
        product->algorithm = algorithms[i].algo;
        product->workspace_bytes = algorithms[i].workspaceSize;
        if (tune && !product_has_time(products)) *timed = false;
        if (best >= 0 && !*timed) break;
        if (!completes(trial)) continue;
        if (!tune || !*timed) return i;
        float time = product_time(products, queues, trial);
        products->trials_ended = progress_clock();
        if (best < 0 || time < least) {
            least = time;
            best = i;
        }
    }
    return best;
}

int product_try(struct cuda_products *products, struct cuda_product *product,
                const cublasLtMatmulHeuristicResult_t *algorithms, int count, bool *timed) {
    struct trial trial = {products, product, {}};
    size_t workspace_bytes = 0;
    void *memory = NULL;
    int chosen = 0;
    for (int i = 0; i < count; i++)
        if (algorithms[i].workspaceSize > workspace_bytes)
            workspace_bytes = algorithms[i].workspaceSize;
    size_t bytes = assign_operands(&trial.operands, &product->key, workspace_bytes, NULL);
    cudaError_t error = cudaMalloc(&memory, bytes);
    if (error != cudaSuccess && error != cudaErrorMemoryAllocation) {
        snprintf(products->refusal, sizeof products->refusal, "it cannot be tried: %s",
                 cudaGetErrorString(error));
        chosen = -1;
    } else if (error == cudaSuccess) {
        assign_operands(&trial.operands, &product->key, workspace_bytes, memory);
        if (fill_operands(products, &trial.operands, &product->key, memory, bytes))
            chosen = choose(&trial, product, algorithms, count, timed);
    }
    if (memory) cudaFree(memory);
    cudaGetLastError(); /* clears the error: with too little memory the library's first choice is
                           taken */
    return chosen;
}
